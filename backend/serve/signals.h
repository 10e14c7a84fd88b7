// What handlers of signals raise while a thread of the program waits for a call.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchwire {

/// The calling thread is Python's main one, which alone runs handlers of signals. With the GIL, on import.
void noteMainThread();

/// Whether handlers of signals run on the calling thread. Takes nothing.
bool handlesSignals();

/// Runs the handlers of signals that have come, and keeps what they raise until raisePendingSignal(). Whether they have
/// raised anything. Takes the GIL, or is called with it.
bool runSignalHandlers();

/// Raises what a handler has raised while this thread waited, or read results: whoever waits calls it afterwards, with the
/// GIL.
void raisePendingSignal();

} // namespace torchwire
