#include "backend/base/call_error.h"

namespace torchwire {

std::exception_ptr exceptionOf(const Error& error) {
  return error.code() == ErrorCode::raised
      ? std::make_exception_ptr(std::runtime_error(error.message()))
      : std::make_exception_ptr(CallError(error));
}

std::optional<Error> callErrorIn(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const CallError& e) {
    return e.error();
  } catch (...) { // NOLINT(bugprone-empty-catch): another one's
    return std::nullopt;
  }
}

} // namespace torchwire
