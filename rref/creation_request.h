// What a request says that creates an RRef.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/types.h>

#include <optional>

namespace torchwire {

/// The RRef that a request creates, and the caller's fork of it.
struct CreationRequest {
  torch::distributed::rpc::RRefId rref;
  torch::distributed::rpc::ForkId fork;
  bool isOfPython = false; // the RRef's value is a Python object
};

/// None if the request creates none. RRefs among the arguments may be made for it: see PendingRRefs. Throws what libtorch
/// does for a request that it cannot read.
std::optional<CreationRequest> creationIn(const torch::distributed::rpc::Message& request);

} // namespace torchwire
