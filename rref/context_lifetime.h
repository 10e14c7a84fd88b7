// libtorch's RRefContext over the RPC lifetimes of a process: each lasts from an init_rpc to the end of its shutdown.
#pragma once

#include <torch/csrc/distributed/rpc/rref_context.h>

#include <cstdint>
#include <memory>

namespace torchwire {

/// RRefContext::destroyInstance takes three steps: from now on nothing is sent for RRefs that are dropped; what is left
/// is listed; the owners are dropped. The last two go through the context's tables without their lock, and PyTorch calls
/// it while the agent still serves: a fork that comes or goes meanwhile corrupts the heap.
///
/// This takes the first step alone. The agent can end after it, and destroyInstance come when no thread of the agent is
/// left. May be called again. Takes a mutex that libtorch holds while it sends, so not from a send.
void endDeletesOfRRefs();

// libtorch makes its RRefContext once, for the first agent, and keeps it for good: with that agent, with the flag that
// destroyInstance sets, and with the forks that were left. The three functions below let go of that. They retire what
// is left of an earlier lifetime: its tables are emptied, and its RRefs send nothing when they are dropped. Each may
// free values and end an agent, so call it without locks, on a thread that may block; one at a time.

/// An RPC lifetime begins: `agent`, which serves nothing yet, is the context's from now on. Returns whether RRefs of an
/// earlier lifetime may be around in this process.
bool beginRRefs(std::shared_ptr<torch::distributed::rpc::RpcAgent> agent);
/// The same for an agent of another backend, if the context has ever been torchwire's; else the context is left as it is.
void beginForeignRRefs(std::shared_ptr<torch::distributed::rpc::RpcAgent> agent);
/// The lifetime that began last has ended, and its agent with it. The context keeps of the agent who was in the group.
void endRRefs();

/// Another number in each lifetime. Thread-safe.
uint64_t rrefLifetime();
/// Throws std::runtime_error for an RRef that belongs to a lifetime that has ended. Thread-safe; does not block.
void expectOfThisLifetime(const torch::distributed::rpc::RRef& rref);

} // namespace torchwire
