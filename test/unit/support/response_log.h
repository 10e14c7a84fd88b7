// What a server has sent.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <map>
#include <utility>

#include "backend/base/annotations.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"
#include "test/unit/support/notifier.h"

namespace torchwire {

/// Stands in for the links of a server: takes its responses, and keeps a copy of each as it would arrive. Thread-safe.
class ResponseLog {
 public:
  /// Sends a response, as far as its sender can see: the frame ends on a thread that sends.
  void add(WorkerId caller, OutgoingFrame frame) EXCLUDES(mutex_);

  /// The first response to the call, once it has come. Fails the test if it does not.
  c10::intrusive_ptr<torch::distributed::rpc::Message> waitFor(WorkerId caller, uint64_t callId)
      EXCLUDES(mutex_);
  /// Waits until so many responses have come, all in all. Whether they have.
  bool waitForTotal(size_t expected);

  size_t count(WorkerId caller, uint64_t callId) const EXCLUDES(mutex_);
  size_t total() const EXCLUDES(mutex_);

 private:
  using Call = std::pair<WorkerId, uint64_t>;

  Notifier notifier_;
  mutable Mutex mutex_{LockRank::testOuter};
  std::multimap<Call, IncomingFrame> responses_ GUARDED_BY(mutex_);
};

} // namespace torchwire
