// The body of a message that says why a request has failed at its callee: because a call of torchwire's has failed there.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/base/error.h"

namespace torchwire {

/// The kinds of failed calls, in programs and on the wire: a class of torchwire.errors each.
enum class FailureKind : uint8_t {
  other = 0,
  timedOut = 1,
  overloaded = 2,
  cancelled = 3,
  workerDied = 4,
  workerUnreachable = 5,
};
FailureKind kindOf(ErrorCode code);

/// | field    | type   | meaning                                                                                    |
/// | -------- | ------ | ------------------------------------------------------------------------------------------ |
/// | kind     | u8     | FailureKind                                                                                |
/// | executed | u8     | whether that call has run: 0 unknown, 1 no, 2 yes                                          |
/// | worker   | string | whom it was to; empty: unknown                                                             |
/// | message  | string | for the user                                                                               |
std::vector<char> encodeFailure(const Error& error);

/// Throws FormatError.
Error decodeFailure(const std::vector<char>& body);

} // namespace torchwire
