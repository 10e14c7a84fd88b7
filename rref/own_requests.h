// The messages about RRefs that PyTorch does not have: what is in them.
//
// | message        | body                                                        |
// | -------------- | ----------------------------------------------------------- |
// | creationSite   | id of the RRef, string                                      |
// | creationFailed | ids of the RRef and of the creator's fork, flag: its value is an object of Python's, failure.h |
// | holdersRequest | count (u32), that many ids of forks                         |
// | holdersReply   | count (u32), ids: those of the forks that live at the sender |
//
// An id is the worker's number (i32) and its local number (i64).
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <string>
#include <vector>

#include "backend/base/error.h"
#include "rref/ledger/global_id.h"

namespace torchwire {

struct CreationSite {
  GlobalId rref;
  std::string site;
};

using MessagePtr = c10::intrusive_ptr<torch::distributed::rpc::Message>;

/// A creation that has failed at its creator.
struct LostCreation {
  GlobalId rref;
  GlobalId fork;
  bool isOfPython = false;
  Error why;
};

MessagePtr toMessage(const CreationSite& site);
MessagePtr toMessage(const LostCreation& creation);
MessagePtr holdersRequest(const std::vector<GlobalId>& forks);
MessagePtr holdersReply(const std::vector<GlobalId>& forks);

/// These throw FormatError.
CreationSite creationSiteIn(const torch::distributed::rpc::Message& message);
LostCreation lostCreationIn(const torch::distributed::rpc::Message& message);
/// Of a request or a reply.
std::vector<GlobalId> forksIn(const torch::distributed::rpc::Message& message);

} // namespace torchwire
