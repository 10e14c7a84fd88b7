// Where nobody is there to catch an exception, and it must not end the process.
#pragma once

#include <exception>
#include <string>

#include "backend/base/log.h"

namespace torchwire {

/// Calls `callable`; what it throws becomes a line in the log that names `what`.
template <typename Callable>
void guarded(const char* what, Callable&& callable) noexcept {
  try {
    callable();
  } catch (const std::exception& e) {
    log(LogLevel::error, std::string(what) + " threw: " + e.what());
  } catch (...) {
    log(LogLevel::error, std::string(what) + " threw something unknown");
  }
}

} // namespace torchwire
