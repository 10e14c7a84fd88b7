// The body of a message that says why a request has failed at its callee, where that was a call of the callee's own.
#pragma once

#include <vector>

#include "backend/base/error.h"

namespace torchwire {

/// | field    | type   | meaning                                                                                    |
/// | -------- | ------ | ------------------------------------------------------------------------------------------ |
/// | kind     | u8     | 1 timed out, 2 overloaded, 3 cancelled, 4 worker died, 5 worker unreachable; 0 another     |
/// | executed | u8     | whether that call has run: 0 unknown, 1 no, 2 yes                                          |
/// | worker   | string | whom it was to; empty: unknown                                                             |
/// | message  | string | for the user                                                                               |
std::vector<char> encodeFailure(const Error& error);

/// Throws FormatError.
Error decodeFailure(const std::vector<char>& body);

} // namespace torchwire
