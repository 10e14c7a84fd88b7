// Python exceptions that come out of autograd functions and hooks.
#pragma once

#include <exception>
#include <string>

namespace torchwire {

/// Lets Python keep its state for this native thread until the thread ends. Without it, the state goes with every
/// release of the GIL, and with it an exception that a hook has raised and libtorch has not fetched yet: all that is
/// left of it would be "python_error". Does not take the GIL; does nothing without Python.
void keepPythonThreadState();

/// What went wrong, in words, and where in Python; the second is empty for exceptions of C++.
struct ErrorText {
  std::string message;
  std::string traceback; // lines, the exception last
};

/// Takes the GIL if the exception is Python's.
ErrorText describeException(const std::exception_ptr& error);

} // namespace torchwire
