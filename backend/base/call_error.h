// Errors of calls on their way to the program: values inside, exceptions in futures and beyond.
#pragma once

#include <exception>
#include <optional>
#include <stdexcept>

#include "backend/base/error.h"

namespace torchwire {

/// Why a call has failed, where that was not the callee's code. Python sees it as torchwire.RpcError or the subclass for
/// its code; libtorch as the std::runtime_error that it is, with the error's message. Immutable, so thread-safe.
class CallError : public std::runtime_error {
 public:
  explicit CallError(Error error) : std::runtime_error(error.message()), error_(std::move(error)) {}

  const Error& error() const {
    return error_;
  }

 private:
  const Error error_;
};

/// The error as an exception: a CallError, or a plain std::runtime_error where it says no more than words do.
std::exception_ptr exceptionOf(const Error& error);

/// The reverse, for exceptions that are a CallError.
std::optional<Error> callErrorIn(const std::exception_ptr& exception);

} // namespace torchwire
