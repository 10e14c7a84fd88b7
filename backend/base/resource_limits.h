// What this process may have no more of.
#pragma once

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace torchwire {

/// Whether this process, or its host, has too few file descriptors left for one connection more: a sentence without its
/// subject, the process, that names the limit, its value and the remedy. Opens and closes a few. Thread-safe; does not block.
std::optional<std::string> reachedFileLimit();

/// A sentence for a connection, or a listener, for which there is no port: the limit, its value and the remedy. Thread-safe.
std::string portLimits();

/// A sentence for memory of which there is not that much, likewise.
std::string memoryLimits(size_t bytes);

/// In bytes, with its swap. Thread-safe.
size_t memoryOfHost();

/// A sentence for a thread that could not be started: which limits there are, and their values. Thread-safe.
std::string threadLimits();

/// Starts a thread. Throws std::runtime_error with threadLimits() where there can be none.
template <typename Body>
std::thread startThread(Body body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error&) {
    throw std::runtime_error(threadLimits());
  }
}

} // namespace torchwire
