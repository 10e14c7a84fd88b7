// What the end of a call is for PyTorch.
#pragma once

#include <ATen/ThreadLocalState.h>

#include <chrono>
#include <exception>
#include <string>

#include "backend/base/error.h"
#include "backend/call/call_table.h"
#include "backend/codec/codec.h"

namespace torchwire {

/// Starts the thread on which freshState() is made, and does not wait for it. Throws where there can be none.
void beginFreshState();

/// The state of a thread on which nothing has been set, for the code that reads an answer. The first call waits until it is
/// made.
const at::ThreadLocalState& freshState();

/// What the future of a call that has failed holds: a CallError. `mayCreate`: an RRef, for all that is known.
std::exception_ptr toException(const Error& error, bool mayCreate);

/// The response, with its tensors still on the CPU. Throws what the call's future would hold instead. `creates`: for
/// certain, an RRef.
DecodedMessage responseIn(Outcome outcome, bool mayCreate, bool creates);

/// Throws if a wait for a device has taken all of the time-out of a call to `worker`; 0 is none.
void expectTimeLeft(
    const std::string& worker, std::chrono::milliseconds timeout,
    std::chrono::steady_clock::time_point begun);

} // namespace torchwire
