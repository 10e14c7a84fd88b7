// The errors of calls, for Python.
#pragma once

#include <pybind11/pybind11.h>

#include "backend/base/error.h"

namespace torchwire {

/// One of torchwire.errors. With the GIL.
pybind11::object toPython(const Error& error);

/// From now on Python sees CallError and RemoteError as torchwire's exceptions, whichever module's bindings they come
/// through. With the GIL, on import.
void translateErrors();

} // namespace torchwire
