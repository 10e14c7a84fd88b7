// Workers without PyTorch: requests that are served or refused, answers that come late, peers that come and go.
#include <catch2/catch.hpp>

#include <atomic>
#include <string>
#include <vector>

#include "backend/node/node.h"
#include "backend/wire/failure.h"
#include "backend/wire/message_body.h"
#include "backend/wire/own_requests.h"
#include "test/unit/support/memory_node.h"

using namespace torchwire;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using Serving = MemoryNode::Serving;

namespace {

struct Pair : NodeWorld {
  Pair() {
    meet({&first, &second});
  }

  bool waitFor(const std::function<bool()>& holds) {
    return notifier.waitUntil(holds);
  }

  MemoryNode first{*this, 0};
  MemoryNode second{*this, 1};
};

} // namespace

TEST_CASE("a call is answered by the program", "[node]") {
  Pair pair;
  CHECK(pair.first.call(pair.second, "there") == "there");
  CHECK(pair.second.call(pair.first, "back") == "back");
  CHECK(pair.first.node().calls().size() == 0);
}

TEST_CASE("a call that the program does not serve fails, and says why", "[node]") {
  Pair pair;
  pair.second.setServing(Serving::refuses);
  const std::string error = pair.first.call(pair.second, "there");
  CHECK_THAT(error, Contains("worker 'w1' does not serve the call: "));
  CHECK_THAT(error, Contains("thread"));
  CHECK_THAT(error, !Contains("shuts down"));
}

TEST_CASE("a node that is closed answers nobody's request any more", "[node]") {
  Pair pair;
  CHECK(pair.first.call(pair.second, "there") == "there");
  pair.second.setServing(Serving::refuses);
  CHECK(pair.second.node().close());
  CHECK_FALSE(pair.second.node().close());
  CHECK(pair.second.node().isClosed());
  CHECK_THAT(pair.first.call(pair.second, "there", milliseconds(50)), Contains("50 ms"));
}

TEST_CASE("a response to a call that is over goes to the program", "[node]") {
  Pair pair;
  CHECK(pair.first.call(pair.second, "there") == "there");
  pair.second.setServing(Serving::keepsSilent);
  CHECK_THAT(pair.first.call(pair.second, "there", milliseconds(20)), Contains("20 ms"));
  OutgoingFrame late = bodyFrame(FrameKind::response, own_requests::kObserved, {'h', 'i'});
  setCallId(late, 2);
  pair.second.links().sendIfConnected(0, std::move(late), [](const Error&) {});
  CHECK(pair.waitFor([&] { return pair.first.hasHeard("late hi"); }));
}

TEST_CASE("a refusal of a call that is over undoes what its request has said", "[node]") {
  std::atomic<bool> ended{false};
  std::atomic<int> undone{0};
  Pair pair;
  CHECK(pair.first.call(pair.second, "there") == "there");
  pair.second.setServing(Serving::keepsSilent);
  OutgoingFrame request = bodyFrame(FrameKind::request, MemoryNode::kCall, {});
  const Undo undo([&] { ++undone; });
  request.undo = undo;
  const uint64_t id = pair.first.node().requests().call(
      1, {.timeout = milliseconds(20), .undo = undo}, std::move(request),
      [&](const Outcome&) { ended = true; });
  REQUIRE(pair.waitFor([&] { return ended.load(); }));
  CHECK(undone == 0); // it may run yet
  OutgoingFrame refusal = bodyFrame(
      FrameKind::response, own_requests::kRefused,
      encodeFailure(Error(ErrorCode::unreachable, "no thread", Executed::no)));
  setCallId(refusal, id);
  pair.second.links().sendIfConnected(0, std::move(refusal), [](const Error&) {});
  CHECK(pair.waitFor([&] { return undone == 1; }));
}

TEST_CASE("a peer that leaves is lost, and then gone", "[node]") {
  Pair pair;
  CHECK(pair.first.call(pair.second, "there") == "there");
  pair.second.links().leave(milliseconds(1000));
  REQUIRE(pair.waitFor([&] { return pair.first.hasHeard("gone w1"); }));
  CHECK(pair.first.hasHeard("lost w1"));
  CHECK(pair.first.deathsHeard().empty());
  CHECK_THAT(pair.first.call(pair.second, "there"), Contains("worker 'w1'"));
}

TEST_CASE("a worker that says hello becomes a peer if the program admits it", "[node]") {
  NodeWorld world;
  MemoryNode first{world, 0};
  MemoryNode second{world, 1}; // knows the first, which does not know it
  CHECK(second.call(first, "hello") == "hello");
  CHECK(world.notifier.waitUntil([&] { return first.hasHeard("joined w1"); }));
  CHECK(first.call(second, "welcome") == "welcome");
  CHECK(first.processes().watches(1));
}

TEST_CASE("a worker that the program does not admit is told why", "[node]") {
  NodeWorld world;
  MemoryNode first{world, 0};
  first.setObjection("this worker wants no others");
  MemoryNode second{world, 1};
  CHECK_THAT(second.call(first, "hello"), Contains("this worker wants no others"));
  CHECK_FALSE(first.links().statusOf(1));
  CHECK_FALSE(first.processes().watches(1));
}

TEST_CASE("introducing a worker dials all its peers", "[node]") {
  NodeWorld world;
  MemoryNode first{world, 0};
  MemoryNode second{world, 1};
  MemoryNode third{world, 2};
  third.node().introduce([] {});
  CHECK(third.stateOf(first) == PeerState::connected);
  CHECK(third.stateOf(second) == PeerState::connected);
}

TEST_CASE("what has become of links and peers is noted in a trace", "[node]") {
  Pair pair;
  pair.first.trace().start(100);
  CHECK(pair.first.call(pair.second, "there") == "there");
  pair.first.processes().end(1);
  REQUIRE(pair.waitFor([&] { return pair.first.hasHeard("gone w1"); }));
  std::vector<std::string> incidents;
  for (const TraceLog::Note& note : pair.first.trace().stop().notes) {
    incidents.push_back(note.subject);
  }
  CHECK_THAT(incidents, Catch::VectorContains(std::string("link lost")));
  CHECK_THAT(incidents, Catch::VectorContains(std::string("worker died")));
}
