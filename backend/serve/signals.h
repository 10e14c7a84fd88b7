// What handlers of signals raise while a thread of the program waits.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/utils/pybind.h>

namespace torchwire {

/// The calling thread is Python's main one, which alone runs handlers of signals. With the GIL, on import.
void noteMainThread();

/// Whether handlers of signals run on the calling thread. Takes nothing.
bool handlesSignals();

/// Runs the handlers of signals that have come, and keeps what they raise until raisePendingSignal(). Whether they have
/// raised anything. Throws ForkedMeanwhile in a process that a handler has forked. Takes the GIL, or is called with it.
bool runSignalHandlers();

/// Whether a handler has raised it, as far as can be told. With the GIL.
bool isOfHandler(const pybind11::error_already_set& raised);

/// Keeps what a handler has raised in Python's code that this thread ran, if it is the one that handles signals. With the GIL.
void raiseLater(const pybind11::error_already_set& raised);

/// An InterruptionCheck: runSignalHandlers(), where the calling thread handles signals, and throws Interrupted if one has
/// raised; once more if that is not raised within half a second. Does nothing when it is called again too soon.
void checkSignals();

/// Throws what a handler has raised while this thread read something. If that is an answer, it is raised later, and this throws
/// another error in its place: another thread that waits for the same call has not been interrupted. With the GIL.
[[noreturn]] void throwInterruption(const pybind11::error_already_set& raised);

/// Waits for a future as its wait() does, in a BlockingScope, and throws Interrupted if a handler of a signal raises
/// meanwhile. Without the GIL.
void awaitFuture(c10::ivalue::Future& future);

/// Raises what a handler has raised while this thread waited, or read results: whoever waits calls it afterwards, with the
/// GIL.
void raisePendingSignal();

} // namespace torchwire
