#include "backend/wire/failure.h"

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "backend/base/bytes.h"

namespace torchwire {

FailureKind kindOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::timeout:
      return FailureKind::timedOut;
    case ErrorCode::overloaded:
      return FailureKind::overloaded;
    case ErrorCode::cancelled:
      return FailureKind::cancelled;
    case ErrorCode::workerDied:
      return FailureKind::workerDied;
    case ErrorCode::unreachable:
    case ErrorCode::atLimit:
    case ErrorCode::nobodyListens:
    case ErrorCode::linkBroken:
    case ErrorCode::silent:
    case ErrorCode::declaredDead:
    case ErrorCode::partOver:
    case ErrorCode::refused:
    case ErrorCode::notAdmitted:
    case ErrorCode::sessionUnknown:
    case ErrorCode::duplicateLink:
    case ErrorCode::peerLeft:
    case ErrorCode::badFrame:
      return FailureKind::workerUnreachable;
    default:
      return FailureKind::other;
  }
}

namespace {

ErrorCode codeOf(uint8_t kind) {
  constexpr ErrorCode codes[] = {
      ErrorCode::shutDown,  ErrorCode::timeout,    ErrorCode::overloaded,
      ErrorCode::cancelled, ErrorCode::workerDied, ErrorCode::unreachable,
  };
  if (kind >= std::size(codes)) {
    throw FormatError("a failure of unknown kind " + std::to_string(kind));
  }
  return codes[kind];
}

uint8_t numberOf(Executed executed) {
  return executed == Executed::unknown ? 0 : executed == Executed::no ? 1 : 2;
}

Executed executedOf(uint8_t number) {
  constexpr Executed values[] = {Executed::unknown, Executed::no, Executed::yes};
  if (number >= std::size(values)) {
    throw FormatError("a failure of a call that has run " + std::to_string(number));
  }
  return values[number];
}

} // namespace

std::vector<char> encodeFailure(const Error& error) {
  std::vector<char> body;
  ByteWriter out(body);
  out.number(static_cast<uint8_t>(kindOf(error.code())));
  out.number(numberOf(error.executed()));
  out.string(error.worker());
  out.string(error.message());
  return body;
}

Error decodeFailure(const std::vector<char>& body) {
  ByteReader in(body);
  const ErrorCode code = codeOf(in.number<uint8_t>());
  const Executed executed = executedOf(in.number<uint8_t>());
  std::string worker = in.string();
  return Error(code, in.string(), executed).to(std::move(worker));
}

} // namespace torchwire
