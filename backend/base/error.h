// The error value of the torch-free core: copyable, typed, with a sentence for the user.
#pragma once

#include <string>
#include <utility>

namespace torchwire {

enum class ErrorCode {
  none,
  timeout, // a call's deadline passed
  unreachable, // the peer could not be dialed
  linkBroken, // an established link failed
  refused, // the other side refused the handshake
  duplicateLink, // the other side's own dial to us takes precedence
  peerLeft, // the peer left the group in an orderly way
  shutDown, // this worker is shutting down
  badFrame, // bytes from outside that break the protocol
  injected, // by a fault plan, whose rule it names
  passFailed, // a backward pass: user code raised, or the pass cannot finish
};

/// What went wrong, in words that name the worker, the operation and the remedy.
/// A default-constructed Error means success. A value: copy it across threads freely.
class Error {
 public:
  Error() = default;
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  explicit operator bool() const {
    return code_ != ErrorCode::none;
  }
  ErrorCode code() const {
    return code_;
  }
  const std::string& message() const {
    return message_;
  }

 private:
  ErrorCode code_ = ErrorCode::none;
  std::string message_;
};

} // namespace torchwire
