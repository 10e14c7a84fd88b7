// Python exceptions that come out of autograd functions and hooks.
#pragma once

#include <exception>
#include <string>

namespace torchwire {

/// What went wrong, in words, and where in Python; the second is empty for exceptions of C++.
struct ErrorText {
  std::string message;
  std::string traceback; // lines, the exception last
};

/// Takes the GIL if the exception is Python's.
ErrorText describeException(const std::exception_ptr& error);

} // namespace torchwire
