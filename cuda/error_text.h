// What an exception says to users.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace torchwire::cuda {

/// Its message, without the C++ stack that PyTorch's errors carry.
inline std::string reasonOf(const std::exception& e) {
  const auto* const fromPyTorch = dynamic_cast<const c10::Error*>(&e);
  return fromPyTorch == nullptr ? e.what() : fromPyTorch->what_without_backtrace();
}

} // namespace torchwire::cuda
