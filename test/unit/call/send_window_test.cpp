#include "backend/call/send_window.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

using namespace torchwire;
using Ids = std::vector<uint64_t>;

namespace {

constexpr WorkerId kPeer = 1;
constexpr WorkerId kOther = 2;

OutgoingFrame frameOf(size_t bytes) {
  OutgoingFrame frame;
  frame.head.resize(bytes);
  return frame;
}

/// A window of 100 bytes, and what has been sent through it.
struct Window {
  std::vector<CallTable::Key> sent;
  std::function<void(WorkerId, uint64_t)> onSend = [](WorkerId, uint64_t) {};
  SendWindow window{100, [this](WorkerId to, uint64_t id, const OutgoingFrame&) {
                      sent.push_back({to, id});
                      onSend(to, id);
                    }};

  void send(uint64_t id, size_t bytes, WorkerId to = kPeer) {
    window.send(to, id, frameOf(bytes));
  }
  void end(uint64_t id, WorkerId to = kPeer) {
    window.ended({{to, id}});
  }
  Ids sentTo(WorkerId to) const {
    Ids ids;
    for (const auto& [worker, id] : sent) {
      if (worker == to) {
        ids.push_back(id);
      }
    }
    return ids;
  }
};

} // namespace

TEST_CASE("requests are sent up to the bound, and further ones as calls end", "[send_window]") {
  Window w;
  w.send(1, 60);
  w.send(2, 40);
  w.send(3, 50);
  w.send(4, 50);
  CHECK(w.sentTo(kPeer) == Ids{1, 2});
  CHECK(w.window.usage().bytes == 100);
  CHECK(w.window.usage().waiting == 2);
  w.end(2); // room for 40
  CHECK(w.sentTo(kPeer) == Ids{1, 2});
  w.end(1);
  CHECK(w.sentTo(kPeer) == Ids{1, 2, 3, 4});
  w.end(3);
  w.end(4);
  CHECK(w.window.usage().bytes == 0);
  CHECK(w.window.usage().waiting == 0);
}

TEST_CASE("a small request does not overtake one that waits", "[send_window]") {
  Window w;
  w.send(1, 90);
  w.send(2, 90);
  w.send(3, 5);
  CHECK(w.sentTo(kPeer) == Ids{1});
  w.end(1);
  CHECK(w.sentTo(kPeer) == Ids{1, 2, 3});
}

TEST_CASE("a request that is larger than the bound goes alone", "[send_window]") {
  Window w;
  w.send(1, 10);
  w.send(2, 1000);
  CHECK(w.sentTo(kPeer) == Ids{1});
  w.end(1);
  CHECK(w.sentTo(kPeer) == Ids{1, 2});
  w.send(3, 10);
  CHECK(w.sentTo(kPeer) == Ids{1, 2});
  w.end(2);
  CHECK(w.sentTo(kPeer) == Ids{1, 2, 3});
}

TEST_CASE("each peer has a bound of its own", "[send_window]") {
  Window w;
  w.send(1, 100);
  w.send(2, 100);
  w.send(3, 100, kOther);
  CHECK(w.sentTo(kOther) == Ids{3});
  w.end(3, kOther);
  CHECK(w.sentTo(kPeer) == Ids{1});
}

TEST_CASE("what waits leaves the queue with its call", "[send_window]") {
  Window w;
  w.send(1, 100);
  w.send(2, 100);
  w.send(3, 100);
  w.end(2); // its time-out
  w.end(2); // and no harm in saying so twice
  w.end(7); // nor of one that it does not know
  CHECK(w.window.usage().waiting == 1);
  w.end(1);
  CHECK(w.sentTo(kPeer) == Ids{1, 3});
}

TEST_CASE("calls that end together make room only for others", "[send_window]") {
  Window w;
  w.send(1, 100);
  w.send(2, 100);
  w.send(3, 100, kOther);
  w.send(4, 100, kOther);
  w.window.ended({{kPeer, 1}, {kPeer, 2}}); // the peer is gone
  CHECK(w.sentTo(kPeer) == Ids{1});
  CHECK(w.sentTo(kOther) == Ids{3});
}

TEST_CASE("whose request has not been sent is told", "[send_window]") {
  Window w;
  w.send(1, 100);
  w.send(2, 100);
  w.send(3, 100);
  const auto unsent = w.window.ended({{kPeer, 1}, {kPeer, 3}, {kPeer, 9}});
  REQUIRE(unsent.size() == 1);
  CHECK(unsent[0].id == 3);
  CHECK(w.window.ended({{kPeer, 2}}).empty());
}

TEST_CASE("one request that cannot be sent does not hold up the others", "[send_window]") {
  Window w;
  w.send(1, 100);
  w.send(2, 40);
  w.send(3, 40);
  w.onSend = [](WorkerId, uint64_t id) {
    if (id == 2) {
      throw std::runtime_error("no memory");
    }
  };
  w.end(1);
  CHECK(w.sentTo(kPeer) == Ids{1, 2, 3});
  w.end(2);
  w.send(4, 60);
  CHECK(w.sentTo(kPeer) == Ids{1, 2, 3, 4});
}

TEST_CASE("ten thousand that wait may all fail at once when they are sent", "[send_window]") {
  constexpr uint64_t kCalls = 10000;
  Window w;
  w.send(1, 100);
  for (uint64_t id = 2; id <= kCalls; ++id) {
    w.send(id, 100);
  }
  w.onSend = [&](WorkerId to, uint64_t id) { w.end(id, to); };
  w.end(1);
  CHECK(w.sent.size() == kCalls);
  CHECK(w.window.usage().bytes == 0);
}

TEST_CASE("many threads keep to the bound and everything is sent", "[send_window]") {
  constexpr int kThreads = 4;
  constexpr uint64_t kCalls = 2000;
  std::atomic<size_t> underWay{0};
  std::atomic<size_t> most{0};
  std::atomic<uint64_t> sent{0};
  std::mutex mutex;
  std::vector<std::pair<uint64_t, size_t>> open; // sent, and not ended
  SendWindow window(100, [&](WorkerId, uint64_t id, const OutgoingFrame& request) {
    const size_t now = underWay += request.head.size();
    for (size_t before = most; before < now && !most.compare_exchange_weak(before, now);) {
    }
    ++sent;
    const std::lock_guard lock(mutex);
    open.emplace_back(id, request.head.size());
  });
  const auto endOne = [&](size_t choice) {
    std::pair<uint64_t, size_t> one;
    {
      const std::lock_guard lock(mutex);
      if (open.empty()) {
        return;
      }
      std::swap(open[choice % open.size()], open.back());
      one = open.back();
      open.pop_back();
    }
    underWay -= one.second;
    window.ended({{kPeer, one.first}});
  };
  std::atomic<uint64_t> nextId{1};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (uint64_t i = 0; i < kCalls; ++i) {
        window.send(kPeer, nextId++, frameOf(1 + random() % 60));
        endOne(random());
      }
      while (sent < kThreads * kCalls) {
        endOne(random());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(sent == kThreads * kCalls);
  CHECK(most <= 100);
}
