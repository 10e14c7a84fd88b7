// RRefs whose creation has failed, and an error of libtorch's with them.
#pragma once

#include <torch/csrc/distributed/rpc/rref_impl.h>

#include <string>

namespace torchwire {

/// When a creation fails with a time-out (as which torchwire reports a lost link too), libtorch calls
/// RRef::handleError, to mark the RRef as timed out. Up to torch 2.15 at least, that function keeps its handlers in a
/// static table, made by the first call in the process, and they capture the RRef of that call: every later one marks
/// that RRef, which has been freed by then. So one byte of memory that is somebody else's becomes 1, and the RRef that
/// is meant is not marked.
///
/// This makes the first call, on an RRef that is never freed, so that the later ones harm nobody. That takes the mark
/// from the one RRef that would get it, so a process that never starts an agent of torchwire's is left as it is. It
/// comes too late where a creation has failed on another backend before. Thread-safe; once is enough.
void keepErrorHandlersValid();

/// Marks an RRef as timed out, and gives an owner that has no value yet the error of `creation`: a value that comes all
/// the same is too late, as it is for RRefs of other workers. Thread-safe. Wakes who waits for the owner's value.
void setCreationFailed(
    torch::distributed::rpc::RRef& rref, const torch::distributed::rpc::JitFuture& creation);

/// Marks an RRef that another worker owns, if its creation has failed. A creation's callbacks do that too, but the program
/// may see that its future is done before they run. Thread-safe.
void markIfNotCreated(torch::distributed::rpc::RRef& rref);

/// Throws, if the creation of the RRef has failed, what its call has failed with, after `text`. Thread-safe.
void throwCreationError(const torch::distributed::rpc::RRef& rref, const std::string& text);

} // namespace torchwire
