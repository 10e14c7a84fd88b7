// What an action writes to standard error: the log, that is.
#pragma once

#include <unistd.h>

#include <array>
#include <functional>
#include <stdexcept>
#include <string>

#include "backend/base/log.h"

namespace torchwire {

constexpr std::chrono::seconds kLogPatience{10};

/// At most what fits into a pipe, 64 KiB.
inline std::string writtenBy(const std::function<void()>& action) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) {
    throw std::runtime_error("no pipe to be had");
  }
  flushLog(kLogPatience);
  const int saved = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  ::close(ends[1]);
  action();
  flushLog(kLogPatience);
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  std::string text;
  std::array<char, 512> buffer{};
  for (ssize_t n; (n = ::read(ends[0], buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  ::close(ends[0]);
  return text;
}

} // namespace torchwire
