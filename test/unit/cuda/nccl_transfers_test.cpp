#include "cuda/transfer/nccl_transfers.h"

#include <catch2/catch.hpp>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "test/unit/cuda/fake_nccl.h"

using namespace torchwire;
using namespace torchwire::cuda;

namespace {

constexpr WorkerId kPeer = 1;

/// One worker's lanes, and what they say to peers and of themselves.
struct Worker {
  FakeNccl nccl;
  std::vector<LaneMessage> sent;
  std::vector<std::string> failed;
  NcclTransfers transfers{
      nccl,
      {[this](WorkerId, const LaneMessage& message, std::function<void(const std::string&)> done) {
         sent.push_back(message);
         done("");
       },
       [](std::function<void()> task) { task(); },
       [this](const DeviceRoute&, const std::string& why) { failed.push_back(why); }}};

  uint64_t openLane(WorkerId peer = kPeer) {
    return transfers.open({peer, c10::kCPU, c10::kCPU}).first->number();
  }
};

LaneMessage about(uint64_t lane, LaneMessage::Kind kind) {
  LaneMessage message;
  message.kind = kind;
  message.lane = lane;
  message.error = "the receiver has failed";
  return message;
}

TensorTicket ticketOf(uint64_t lane) {
  TensorTicket ticket;
  ticket.path = DevicePath::nccl;
  ticket.lane = lane;
  ticket.number = 1;
  ticket.sizes = {1};
  return ticket;
}

} // namespace

TEST_CASE("a lane of a worker that was restarted is another", "[nccl_transfers]") {
  Worker former;
  Worker restarted;
  const uint64_t before = former.openLane();
  CHECK(former.openLane() != before);
  CHECK(restarted.openLane() != before);
  SECTION("what is asked of the former one gets no other's tensor") {
    CHECK_THROWS_WITH(
        restarted.transfers.onMessage(kPeer, about(before, LaneMessage::Kind::fetch)),
        "the lane of NCCL's has ended");
  }
  SECTION("and what is said of it harms none") {
    restarted.transfers.onMessage(kPeer, about(before, LaneMessage::Kind::drop));
    restarted.transfers.onMessage(kPeer, about(before, LaneMessage::Kind::receiverFailed));
    CHECK(restarted.failed.empty());
  }
}

TEST_CASE("a lane is its receiver's only", "[nccl_transfers]") {
  Worker worker;
  const uint64_t lane = worker.openLane();
  worker.transfers.onMessage(kPeer + 1, about(lane, LaneMessage::Kind::receiverFailed));
  CHECK(worker.failed.empty());
  worker.transfers.onMessage(kPeer, about(lane, LaneMessage::Kind::receiverFailed));
  CHECK(worker.failed == std::vector<std::string>{"the receiver has failed"});
}

TEST_CASE("a ticket of a lane that has ended is refused", "[nccl_transfers]") {
  Worker worker;
  CHECK_THROWS_WITH(
      worker.transfers.receive(kPeer, ticketOf(1), c10::kCPU), "its lane of NCCL's has ended");
  CHECK(worker.sent.empty());
}

TEST_CASE(
    "a connection that is lost ends the lanes to its peer, and no others", "[nccl_transfers]") {
  Worker worker;
  const uint64_t lost = worker.openLane();
  const uint64_t other = worker.openLane(kPeer + 1);
  worker.transfers.lose(kPeer, "lost");
  worker.transfers.onMessage(kPeer, about(lost, LaneMessage::Kind::receiverFailed));
  CHECK(worker.failed.empty()); // its route has been forgotten
  worker.transfers.onMessage(kPeer + 1, about(other, LaneMessage::Kind::receiverFailed));
  CHECK(worker.failed.size() == 1);
}

TEST_CASE("who has closed opens no lanes", "[nccl_transfers]") {
  Worker worker;
  worker.transfers.close("shut down");
  CHECK_THROWS_WITH(worker.openLane(), "shut down");
}
