// How the user is told that a peer cannot be reached: the sentences name the worker and the remedy.
#pragma once

#include <optional>
#include <string>

#include "backend/base/error.h"
#include "backend/link/link.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// This worker leaves: nothing goes out any more.
Error shutDownError();
/// The peer has left. `reason`: in its own words; empty: in order.
Error leftError(const WorkerRecord& peer, const std::string& reason);
/// `reason` as in "worker 'w' (rank 1) has died: <reason>".
Error diedError(const WorkerRecord& peer, const std::string& reason);
/// The reason in what that has returned.
std::string reasonOfDeath(const WorkerRecord& peer, const Error& died);
/// This worker is taken for dead: nothing goes out any more.
Error declaredDeadError(const std::string& reason);
/// A link to the peer was there and broke; or, where the cause is a bad frame or a refusal, one side closed it.
Error lostError(const WorkerRecord& peer, const Error& cause);
/// A link failed under a frame. `peer`: as WorkerRecord::describe says it. An error that was injected says all by
/// itself, and is returned as it is.
Error sendError(const std::string& peer, const Error& cause);
/// No link to the peer came about.
Error dialError(const WorkerRecord& peer, const Error& cause);

/// Why a link of this kind is of no use. TensorPipe would end the process at the first large tensor.
std::optional<std::string> objectionTo(const LinkDescription& description);

} // namespace torchwire
