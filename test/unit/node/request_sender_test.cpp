// Requests on their way to the links: what fails at once, what fails later, and what waits for room.
#include <catch2/catch.hpp>
#include <optional>
#include <stdexcept>
#include <vector>

#include "backend/base/timer.h"
#include "backend/node/request_sender.h"

using namespace torchwire;

namespace {

const Error kBroken(ErrorCode::linkBroken, "it broke");

OutgoingFrame frameOf(size_t bytes) {
  OutgoingFrame frame;
  ByteWriter out(frame.head);
  FrameHeader{.kind = FrameKind::request}.write(out);
  frame.head.resize(bytes);
  return frame;
}

/// A sender on links that do what the test says.
struct Sender {
  explicit Sender(size_t maxBytesInFlight = 0) : most(maxBytesInFlight) {}
  ~Sender() {
    timer.stop();
  }

  void send(OutgoingFrame request, Link::Sent sent) {
    if (throws) {
      throw std::runtime_error("no memory");
    }
    ids.push_back(callIdOf(request));
    if (failsAtOnce) {
      sent(kBroken);
    } else {
      open.push_back(std::move(sent));
    }
  }
  uint64_t call(size_t bytes = 64) {
    return requests.call(
        1, {.tracked = requests.isCounted(bytes)}, frameOf(bytes),
        [this](const Outcome& outcome) { ends.push_back(outcome.error); });
  }

  const size_t most;
  bool throws = false;
  bool failsAtOnce = false;
  std::vector<uint64_t> ids; // of the requests that came to the links
  std::vector<Link::Sent> open;
  std::vector<Error> ends;
  int unsent = 0;
  Timer timer;
  CallTable calls{timer};
  RequestSender requests{
      {calls, most,
       [this](WorkerId, OutgoingFrame request, Link::Sent sent) {
         send(std::move(request), std::move(sent));
       },
       [this](WorkerId) { ++unsent; }}};
};

} // namespace

TEST_CASE("a request is sent with the id of its call", "[request_sender]") {
  Sender sender;
  const uint64_t id = sender.call();
  CHECK(sender.ids == std::vector<uint64_t>{id});
  CHECK(sender.calls.contains(id));
  sender.open[0](Error());
  CHECK(sender.ends.empty()); // it awaits its answer
  sender.calls.failAll(kBroken);
}

TEST_CASE("a request that fails at once has ended when call() returns", "[request_sender]") {
  Sender sender;
  SECTION("by the links") {
    sender.failsAtOnce = true;
  }
  SECTION("by an exception") {
    sender.throws = true;
  }
  const uint64_t id = sender.call();
  CHECK_FALSE(sender.calls.contains(id));
  REQUIRE(sender.ends.size() == 1);
  CHECK(sender.ends[0].code() == ErrorCode::linkBroken);
  CHECK(sender.unsent == 1);
}

TEST_CASE("what fails at once is returned by send(), and the call goes on", "[request_sender]") {
  Sender sender;
  sender.failsAtOnce = true;
  const uint64_t id = sender.calls.open(1, {}, [](const Outcome&) {});
  OutgoingFrame request = frameOf(64);
  setCallId(request, id);
  CHECK(sender.requests.send(1, id, std::move(request), false).code() == ErrorCode::linkBroken);
  CHECK(sender.calls.contains(id));
  sender.calls.failAll(kBroken);
}

TEST_CASE("what fails later fails the call", "[request_sender]") {
  Sender sender;
  sender.call();
  sender.open[0](kBroken);
  REQUIRE(sender.ends.size() == 1);
  CHECK(sender.ends[0].message() == "it broke");
  CHECK(sender.unsent == 1);
}

TEST_CASE("of a call that has ended nothing is unsent", "[request_sender]") {
  Sender sender;
  sender.call();
  sender.calls.takePeer(1, kBroken)();
  sender.open[0](kBroken);
  CHECK(sender.unsent == 0); // later calls to the peer may be under way
}

TEST_CASE("large requests wait for room, small ones do not", "[request_sender]") {
  Sender sender(10000);
  const uint64_t first = sender.call(8000);
  const uint64_t second = sender.call(8000);
  const uint64_t small = sender.call(100);
  CHECK(sender.ids == std::vector<uint64_t>{first, small});
  CHECK(sender.requests.isWaiting(1, second));
  CHECK(sender.requests.usage()->bytes == 8000);
  CHECK(sender.requests.usage()->waiting == 1);
  sender.calls.fail(first, kBroken);
  CHECK(sender.ids == std::vector<uint64_t>{first, small, second});
  CHECK_FALSE(sender.requests.isWaiting(1, second));
  sender.calls.failAll(kBroken);
  CHECK(sender.requests.usage()->bytes == 0);
}

TEST_CASE("without a bound nothing waits", "[request_sender]") {
  Sender sender;
  CHECK_FALSE(sender.requests.isCounted(size_t{1} << 40));
  CHECK_FALSE(sender.requests.usage().has_value());
  CHECK_FALSE(sender.requests.isWaiting(1, 1));
}
