// What Python keeps of a native thread.
#pragma once

#include "backend/base/task.h"

namespace torchwire {

/// Runs a task of a pool on a thread whose Python state is kept until the thread ends. Otherwise Python makes a state each
/// time the thread takes the GIL, and destroys it with the release: slow (a call maps and unmaps memory four times), and
/// an exception goes with it that a hook has raised and libtorch has not fetched yet.
///
/// The context variables that a task sets are not there for the next one; what it puts into threading.local is, as in
/// Python's own pools. Takes the GIL to drop the variables, and when the thread ends: nobody may hold it and wait for
/// that. Runs the task all the same without Python.
void runOnPythonThread(Task& task);

} // namespace torchwire
