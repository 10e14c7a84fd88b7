// The messages about RRefs that PyTorch does not have: what is in them.
//
// | message        | body                                                        |
// | -------------- | ----------------------------------------------------------- |
// | creationSite   | id of the RRef, string                                      |
// | holdersRequest | count (u32), that many ids of forks                         |
// | holdersReply   | count (u32), ids: those of the forks that live at the sender |
//
// An id is the worker's number (i32) and its local number (i64).
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <string>
#include <vector>

#include "rref/ledger/global_id.h"

namespace torchwire {

struct CreationSite {
  GlobalId rref;
  std::string site;
};

using MessagePtr = c10::intrusive_ptr<torch::distributed::rpc::Message>;

MessagePtr toMessage(const CreationSite& site);
MessagePtr holdersRequest(const std::vector<GlobalId>& forks);
MessagePtr holdersReply(const std::vector<GlobalId>& forks);

/// These throw FormatError.
CreationSite creationSiteIn(const torch::distributed::rpc::Message& message);
/// Of a request or a reply.
std::vector<GlobalId> forksIn(const torch::distributed::rpc::Message& message);

} // namespace torchwire
