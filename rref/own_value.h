// The value of an RRef, at its owner.
#pragma once

#include <torch/csrc/distributed/rpc/rref_impl.h>

#include <chrono>
#include <optional>

namespace torchwire {

/// Waits until an RRef of this worker's own has a value or an error, which libtorch does without end. Throws a CallError
/// when `timeout` is over; nullopt: none. Returns early if a handler of a signal has raised (signals.h). Without the GIL.
void awaitOwnValue(
    torch::distributed::rpc::OwnerRRef& rref, std::optional<std::chrono::milliseconds> timeout);

} // namespace torchwire
