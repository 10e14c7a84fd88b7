// Threads of a process whose interpreter ends.
#pragma once

namespace torchwire {

/// For stopThreadsWherePythonEnds(), which does nothing before: takes a third of a millisecond. May be called again. Call it
/// with the GIL.
void findWherePythonEndsThreads();

/// From the moment at which its interpreter ends, Python ends each other thread that asks for the GIL, by pthread_exit().
/// That unwinds the thread's stack, and where a C++ function on it must not be left by an exception (py::gil_scoped_release
/// and libtorch's callbacks are such), the process aborts. After this such a thread stops for good instead, as in CPython
/// from 3.14 on, and ends with the process. Does nothing where that is so anyway, and elsewhere than on x86-64 Linux. May be
/// called again, on any thread.
void stopThreadsWherePythonEnds();

} // namespace torchwire
