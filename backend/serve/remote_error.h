// What a Python function has raised on another worker.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace torchwire {

/// Python sees it as what torchwire.remote_errors makes of it: an exception of the function's type where that is possible.
/// Holds nothing of Python's, since whoever drops it last may not take the GIL. Immutable, so thread-safe.
class RemoteError : public std::runtime_error {
 public:
  /// PyTorch tells these apart.
  enum class Kind { runtimeError, valueError, typeError };

  /// `detail`: as torchwire.remote_errors has written it on the callee; empty where there is none.
  RemoteError(const std::string& text, Kind kind, std::string detail)
      : std::runtime_error(text), kind_(kind), detail_(std::move(detail)) {}

  Kind kind() const {
    return kind_;
  }
  const std::string& detail() const {
    return detail_;
  }

 private:
  const Kind kind_;
  const std::string detail_;
};

} // namespace torchwire
