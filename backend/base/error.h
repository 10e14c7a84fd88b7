// The error value of the torch-free core: copyable, typed, with a sentence for the user.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace torchwire {

enum class ErrorCode {
  none,
  timeout, // a call's deadline passed
  overloaded, // a call's deadline passed while its request waited for room
  cancelled, // the program has given a call up
  workerDied, // the peer's process is known to have ended
  unreachable, // the peer could not be dialed
  atLimit, // neither could it, because one of the two can have no more of what a connection takes
  nobodyListens, // neither could it, because its host says that nobody listens there
  linkBroken, // an established link failed
  silent, // the peer was not to be heard for as long as its session lasts without
  refused, // the other side refused the handshake
  notAdmitted, // whoever was dialed has refused the connection, or not proved to be of the group
  sessionUnknown, // the other side knows nothing of the session that was to go on
  duplicateLink, // the other side's own dial to us takes precedence
  declaredDead, // the others take this worker for dead, and go on without it
  partOver, // the peer has been declared dead, and knows it
  peerLeft, // the peer left the group in an orderly way
  shutDown, // this worker is shutting down
  badFrame, // bytes from outside that break the protocol
  injected, // by a fault plan, whose rule it names
  raised, // by code that served a request or took part in a backward pass; or the pass cannot finish
};
/// How many there are.
constexpr size_t kErrorCodes = static_cast<size_t>(ErrorCode::raised) + 1;

/// Whether a call that has failed has run.
enum class Executed {
  unknown, // its request may have reached the callee
  no, // its request has not been sent, and never will be
  yes,
};

/// What went wrong, in words that name the worker, the operation and the remedy.
/// A default-constructed Error means success. A value: copy it across threads freely.
class Error {
 public:
  Error() = default;
  Error(ErrorCode code, std::string message, Executed executed = Executed::unknown)
      : code_(code), executed_(executed), message_(std::move(message)) {}

  /// The same for a call whose request has not been sent.
  Error notSent() const {
    Error error = *this;
    error.executed_ = Executed::no;
    return error;
  }
  /// The same for a call whose request has been received by a worker that lives.
  Error onlyAnswerLost() const {
    Error error = *this;
    error.executed_ = Executed::yes;
    error.message_ += "; the worker has received the call, and has run it or still will";
    return error;
  }
  /// The same for a call to the worker of this name.
  Error to(std::string worker) const {
    Error error = *this;
    error.worker_ = std::move(worker);
    return error;
  }
  /// The same in other words.
  Error saying(std::string message) const {
    Error error = *this;
    error.message_ = std::move(message);
    return error;
  }

  explicit operator bool() const {
    return code_ != ErrorCode::none;
  }
  ErrorCode code() const {
    return code_;
  }
  const std::string& message() const {
    return message_;
  }
  Executed executed() const {
    return executed_;
  }
  /// Whom the call was to; empty where that is not known, or no call has failed.
  const std::string& worker() const {
    return worker_;
  }

 private:
  ErrorCode code_ = ErrorCode::none;
  Executed executed_ = Executed::unknown;
  std::string message_;
  std::string worker_;
};

} // namespace torchwire
