// How a wait ends early because the program has been interrupted.
#pragma once

#include <chrono>
#include <functional>

namespace torchwire {

/// Thrown out of a wait when a handler of a signal has raised. No std::exception: it is not an error to make a sentence of.
struct Interrupted {};

/// Thrown out of a wait in a process that a handler of a signal has forked: what is awaited is the parent's, and so is all that
/// could be told to others. No std::exception, for the same reason.
struct ForkedMeanwhile {};

/// A thread that waits calls it every kInterruptionInterval, without locks. Throws Interrupted where the wait is to end.
using InterruptionCheck = std::function<void()>;

constexpr std::chrono::milliseconds kInterruptionInterval{50};

} // namespace torchwire
