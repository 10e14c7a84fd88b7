// libtorch's autograd contexts over the RPC lifetimes of a process: each lasts from an init_rpc to the end of its shutdown.
#pragma once

#include <cstdint>

namespace torchwire {

// Of the id of a context, or of a call in one. Above them is the number of the worker that has made it.
constexpr int kContextCounterBits = 48;

// libtorch's container is set up once, for a worker's number, and refuses another one. All of the below is thread-safe.

/// This process is to be the worker with that number, in its next RPC lifetime: its ids go on from the last one that the
/// container has made, so that none comes twice. Does nothing before libtorch has set its container up.
void moveContextsTo(int64_t worker);

/// A lifetime begins that is not the process's first: the contexts that are here belong to earlier ones, and are dropped.
/// Frees graphs, which may take the GIL: call it without the GIL and without locks.
void endContexts();
/// Whether it is the id of one of these, for all that can be known of an id.
bool isOfEndedLifetime(int64_t context);
/// Throws std::runtime_error if it is.
void expectOfThisLifetime(int64_t context);
/// Takes the calling thread out of such a context, in which a `with` statement may have left it.
void leaveEndedContext();

} // namespace torchwire
