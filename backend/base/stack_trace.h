// Where a thread is, for a person to read.
#pragma once

#include <string>

namespace torchwire {

/// The calling thread's stack, the innermost function first, one line each: its name (also where the library does not
/// export it), the offset in it, and the library. Allocates, so not for signal handlers. Thread-safe.
std::string stackTrace();

} // namespace torchwire
