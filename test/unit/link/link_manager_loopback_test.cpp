// A worker as a peer of its own.
#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <thread>

#include "backend/link/link_manager.h"
#include "backend/link/loopback_link.h"
#include "test/unit/support/memory_worker.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Arrivals = std::vector<MemoryWorker::Arrival>;

namespace {

/// A loopback link on which frames with a certain text do not come through whole.
class DamagingLink final : public Link {
 public:
  void send(OutgoingFrame frame, Sent sent) override {
    inner_.send(std::move(frame), std::move(sent));
  }
  void receive(Received received) override {
    inner_.receive([received = std::move(received)](const Error& error, IncomingFrame frame) {
      const bool damaged = !error && textOf(frame) == "damaged";
      received(
          damaged ? Error(ErrorCode::badFrame, "wrong checksum") : error,
          damaged ? IncomingFrame() : std::move(frame));
    });
  }
  void close() override {
    inner_.close();
  }

 private:
  LoopbackLink inner_;
};

void connectToItself(MemoryWorker& worker, std::shared_ptr<Link> link) {
  worker.links().addLoopback(worker.record(), std::move(link));
  worker.start();
}

} // namespace

TEST_CASE("what a worker sends to itself arrives in order", "[link_manager_loopback]") {
  World world;
  MemoryWorker worker(world, 3);
  connectToItself(worker, std::make_shared<LoopbackLink>());
  CHECK(worker.send(worker, "one").succeeded());
  CHECK(worker.sendIfConnected(worker, "two").succeeded());
  CHECK(worker.connect(worker).succeeded());
  CHECK(worker.arrivals() == Arrivals{{3, "one"}, {3, "two"}});
  CHECK(world.network.dials() == 0);
}

TEST_CASE(
    "a worker is not among its peers, and leaves without waiting for itself",
    "[link_manager_loopback]") {
  World world;
  MemoryWorker worker(world, 0);
  connectToItself(worker, std::make_shared<LoopbackLink>());
  CHECK(worker.links().status().empty());
  const auto start = std::chrono::steady_clock::now();
  worker.links().leave(std::chrono::minutes(10));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::minutes(1));
  CHECK(worker.send(worker, "too late").error().code() == ErrorCode::shutDown);
  CHECK(worker.losses().empty());
}

TEST_CASE(
    "a damaged frame to itself fails the calls, and the link goes on", "[link_manager_loopback]") {
  World world;
  MemoryWorker worker(world, 0);
  connectToItself(worker, std::make_shared<DamagingLink>());
  CHECK(worker.send(worker, "damaged").succeeded());
  REQUIRE(worker.losses().size() == 1);
  CHECK(worker.losses()[0].peer == 0);
  CHECK(
      worker.losses()[0].error.message() == "this worker lost its calls to itself: wrong checksum");
  CHECK(worker.send(worker, "whole").succeeded());
  CHECK(worker.texts() == std::vector<std::string>{"whole"});
  CHECK(worker.losses().size() == 1);
}

TEST_CASE("a loopback link that has been closed calls back no more", "[link_manager_loopback]") {
  LoopbackLink link;
  std::atomic<bool> entered{false};
  std::atomic<bool> closing{false};
  std::atomic<bool> ended{false};
  link.receive([&](const Error&, const IncomingFrame&) {
    entered = true;
    while (!closing) {
      std::this_thread::yield();
    }
    for (int i = 0; i < 1000; ++i) { // for close() to return in, if it does not wait
      std::this_thread::yield();
    }
    ended = true;
  });
  std::thread sender([&] { link.send(textFrame("last"), [](const Error&) {}); });
  while (!entered) {
    std::this_thread::yield();
  }
  closing = true;
  link.close();
  CHECK(ended);
  sender.join();
}

TEST_CASE("a loopback link goes on after a callback that throws", "[link_manager_loopback]") {
  LoopbackLink link;
  link.receive([](const Error&, const IncomingFrame&) { throw std::runtime_error("as it wants"); });
  CHECK_THROWS_WITH(link.send(textFrame("one"), [](const Error&) {}), "as it wants");
  std::string text;
  link.receive([&](const Error&, const IncomingFrame& frame) { text = textOf(frame); });
  link.send(textFrame("two"), [](const Error&) {});
  CHECK(text == "two");
  link.close();
}

TEST_CASE("a loopback link may be closed in its own callback", "[link_manager_loopback]") {
  LoopbackLink link;
  int calls = 0;
  link.receive([&](const Error& error, const IncomingFrame&) {
    CHECK_FALSE(error);
    ++calls;
    link.close();
  });
  link.send(textFrame("close"), [](const Error&) {});
  CHECK(calls == 1);
}
