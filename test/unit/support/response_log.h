// What a server has sent.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <catch2/catch.hpp>

#include <map>
#include <utility>

#include "backend/base/annotations.h"
#include "backend/base/thread_role.h"
#include "backend/codec/codec.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"
#include "test/unit/support/notifier.h"

namespace torchwire {

/// Stands in for the links of a server: takes its responses, and keeps a copy of each as it would arrive. Thread-safe.
class ResponseLog {
 public:
  using Message = torch::distributed::rpc::Message;

  /// Sends a response, as far as its sender can see: the frame ends on a thread that sends.
  void add(WorkerId caller, OutgoingFrame frame) EXCLUDES(mutex_) {
    IncomingFrame arrived;
    {
      const SendScope sending;
      arrived = loopBack(std::move(frame));
      frame = OutgoingFrame(); // and with it what its segments point at
    }
    const uint64_t callId = readHeader(arrived).header.callId;
    {
      MutexLock lock(mutex_);
      responses_.emplace(Call(caller, callId), std::move(arrived));
    }
    notifier_.notify();
  }

  /// The first response to the call, once it has come. Fails the test if it does not.
  c10::intrusive_ptr<Message> waitFor(WorkerId caller, uint64_t callId) EXCLUDES(mutex_) {
    INFO("call " << callId << " of worker " << caller);
    REQUIRE(notifier_.waitUntil([&] { return count(caller, callId) > 0; }));
    ReceivedFrame received = readHeader(first(caller, callId));
    CHECK(received.header.kind == FrameKind::response);
    return decodeMessage(std::move(received)).message;
  }
  /// Waits until so many responses have come, all in all. Whether they have.
  bool waitForTotal(size_t expected) {
    return notifier_.waitUntil([&] { return total() >= expected; });
  }

  size_t count(WorkerId caller, uint64_t callId) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return responses_.count(Call(caller, callId));
  }
  size_t total() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return responses_.size();
  }

 private:
  using Call = std::pair<WorkerId, uint64_t>;

  IncomingFrame first(WorkerId caller, uint64_t callId) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return responses_.find(Call(caller, callId))->second;
  }

  Notifier notifier_;
  mutable Mutex mutex_{LockRank::testOuter};
  std::multimap<Call, IncomingFrame> responses_ GUARDED_BY(mutex_);
};

} // namespace torchwire
