// RRefs whose owners do not know them yet.
#pragma once

#include <torch/csrc/distributed/rpc/rref_context.h>

namespace torchwire {

/// While it lives, RRefs that are unpickled on this thread are noted down if their owners do not know them
/// yet. A function may run only when they do, or it could drop an RRef before its owner heard of it.
class PendingRRefs {
 public:
  PendingRRefs() {
    context_.recordThreadLocalPendingRRefs();
  }
  ~PendingRRefs() {
    context_.clearRecordedPendingRRefsOnError(); // does nothing after confirmed()
  }
  PendingRRefs(const PendingRRefs&) = delete;
  PendingRRefs& operator=(const PendingRRefs&) = delete;

  c10::intrusive_ptr<torch::distributed::rpc::JitFuture> confirmed() {
    return context_.waitForThreadLocalPendingRRefs();
  }

 private:
  torch::distributed::rpc::RRefContext& context_ =
      torch::distributed::rpc::RRefContext::getInstance();
};

} // namespace torchwire
