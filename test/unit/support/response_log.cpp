#include "test/unit/support/response_log.h"

#include <catch2/catch.hpp>

#include "backend/base/thread_role.h"
#include "backend/codec/codec.h"

namespace torchwire {

void ResponseLog::add(WorkerId caller, OutgoingFrame frame) {
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

c10::intrusive_ptr<torch::distributed::rpc::Message> ResponseLog::waitFor(
    WorkerId caller, uint64_t callId) {
  INFO("call " << callId << " of worker " << caller);
  REQUIRE(notifier_.waitUntil([&] { return count(caller, callId) > 0; }));
  MutexLock lock(mutex_);
  const IncomingFrame frame = responses_.find(Call(caller, callId))->second;
  lock.unlock();
  ReceivedFrame received = readHeader(frame);
  CHECK(received.header.kind == FrameKind::response);
  return decodeMessage(std::move(received));
}

bool ResponseLog::waitForTotal(size_t expected) {
  return notifier_.waitUntil([&] { return total() >= expected; });
}

size_t ResponseLog::count(WorkerId caller, uint64_t callId) const {
  MutexLock lock(mutex_);
  return responses_.count(Call(caller, callId));
}

size_t ResponseLog::total() const {
  MutexLock lock(mutex_);
  return responses_.size();
}

} // namespace torchwire
