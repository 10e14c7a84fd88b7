// What Python keeps of a native thread.
#pragma once

#include "backend/base/task.h"

namespace torchwire {

/// Lets Python keep its state for this native thread until the thread ends. Without it, Python makes a state each time
/// the thread takes the GIL, and destroys it with the release: slow (three mappings of memory a request), and an
/// exception goes with it that a hook has raised and libtorch has not fetched yet. Does not take the GIL; does nothing
/// without Python. The thread takes the GIL when it ends, so nobody may hold that and wait for it.
void keepPythonThreadState();

/// Runs a task of a pool on a thread whose state Python keeps. The context variables that it sets are not there for the
/// next task; what it puts into threading.local is, as in Python's own pools.
void runOnPythonThread(Task& task);

} // namespace torchwire
