// What this process may have no more of.
#pragma once

#include <optional>
#include <string>

namespace torchwire {

/// Whether this process, or its host, has too few file descriptors left for one connection more: a sentence without its
/// subject, the process, that names the limit, its value and the remedy. Opens and closes a few. Thread-safe; does not block.
std::optional<std::string> reachedFileLimit();

/// A sentence for a thread that could not be started: which limits there are, and their values. Thread-safe.
std::string threadLimits();

} // namespace torchwire
