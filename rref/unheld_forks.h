// Forks that nobody holds any more, at a shutdown.
#pragma once

#include <chrono>
#include <cstddef>

#include "rref/rref_service.h"

namespace torchwire {

/// An owner does not know to whom it has handed a fork itself, nor a user who got one from it; and what a message says of a
/// fork is lost with a session. libtorch waits for all of these at a shutdown. How many forks there are on this worker that
/// may be lost: handed out, and nobody has told of them; or not confirmed.
size_t countDoubtfulForks(RRefService& service);

/// Ends libtorch's wait for the confirmation of this worker's own forks, for a time when none is on its way.
void letGoUnconfirmedUsers();

/// Drops the forks that this worker, owner or user, has handed out and that no worker holds, for a time when no RRef is on
/// its way. Nothing where a worker that is not gone does not answer within `patience`. Call it without the GIL, on a thread
/// that may block.
void dropUnheldForks(RRefService& service, std::chrono::milliseconds patience);

} // namespace torchwire
