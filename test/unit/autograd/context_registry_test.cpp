#include "autograd/pass/context_registry.h"

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <vector>

using namespace torchwire;

namespace {

constexpr ContextId contextOf(WorkerId creator, int64_t number = 1) {
  return (static_cast<int64_t>(creator) << 48) + number;
}

/// A registry whose outside is in the test's hands. Not thread-safe.
struct Desk {
  std::map<ContextId, ContextRegistry::Workers> container; // libtorch's, so to speak
  std::vector<std::pair<WorkerId, ContextId>> told;
  std::vector<ContextRegistry::Told> answers; // in the order of `told`
  std::vector<ContextId> gone;
  ContextRegistry::Workers peers{1, 2, 3};
  std::shared_ptr<ContextRegistry> registry;

  explicit Desk(ContextRegistry::Limits limits = {}) {
    ContextRegistry::Outside outside;
    outside.take = [this](ContextId id) -> std::optional<ContextRegistry::Taken> {
      auto node = container.extract(id);
      return node ? std::optional(ContextRegistry::Taken{node.mapped(), nullptr}) : std::nullopt;
    };
    outside.tell = [this](WorkerId worker, ContextId id, ContextRegistry::Told answer) {
      told.emplace_back(worker, id);
      answers.push_back(std::move(answer));
    };
    outside.peers = [this] { return peers; };
    outside.gone = [this](ContextId id) { gone.push_back(id); };
    registry = std::make_shared<ContextRegistry>(std::move(outside), limits);
  }

  void open(ContextId id, ContextRegistry::Workers known) {
    registry->opened(id);
    container[id] = std::move(known);
  }
  ContextRegistry::Workers toldOf(ContextId id) const {
    ContextRegistry::Workers workers;
    for (const auto& [worker, which] : told) {
      if (which == id) {
        workers.insert(worker);
      }
    }
    return workers;
  }
};

constexpr ContextId kContext = contextOf(0);
const auto kNobody = std::nullopt;

} // namespace

TEST_CASE("the creator's rank is in the number of a context", "[context_registry]") {
  CHECK(creatorOf(contextOf(0)) == 0);
  CHECK(creatorOf(contextOf(7, 12345)) == 7);
  CHECK(creatorOf(contextOf(32767)) == 32767);
}

TEST_CASE(
    "a release tells the workers that the context knows, but for the one it came from",
    "[context_registry]") {
  Desk desk;
  desk.open(kContext, {0, 1, 2});
  desk.registry->release(kContext, 1, [](bool) {});
  CHECK(desk.container.empty());
  CHECK(desk.gone == std::vector<ContextId>{kContext});
  CHECK(desk.toldOf(kContext) == ContextRegistry::Workers{0, 2});
}

TEST_CASE("a release is done once, when all that were told have answered", "[context_registry]") {
  Desk desk;
  int done = 0;
  desk.open(kContext, {1, 2});
  desk.registry->release(kContext, kNobody, [&](bool) { ++done; });
  desk.answers[1](true);
  CHECK(done == 0);
  desk.answers[0](true);
  CHECK(done == 1);
}

TEST_CASE("a release of what is not there is done at once and tells nobody", "[context_registry]") {
  Desk desk;
  int done = 0;
  desk.registry->release(kContext, 1, [&](bool) { ++done; });
  desk.registry->release(kContext, 2, [&](bool) { ++done; });
  CHECK(done == 2);
  CHECK(desk.told.empty());
  CHECK(desk.gone.empty());
}

TEST_CASE("a release waits for the calls of the context that run here", "[context_registry]") {
  Desk desk;
  int done = 0;
  desk.open(kContext, {1});
  desk.registry->callBegins(kContext);
  desk.registry->callBegins(kContext);
  desk.registry->release(kContext, 1, [&](bool) { ++done; });
  CHECK(desk.registry->status(kContext)->released);
  desk.container[kContext].insert(2); // the call goes on and calls another worker
  desk.registry->callEnds(kContext);
  CHECK(desk.container.size() == 1);
  CHECK(done == 0);
  desk.registry->callEnds(kContext);
  CHECK(desk.container.empty());
  CHECK(desk.toldOf(kContext).count(2) == 1);
  for (const auto& answer : desk.answers) {
    answer(true);
  }
  CHECK(done == 1);
}

TEST_CASE(
    "a call that comes after the release takes the context with it when it ends",
    "[context_registry]") {
  Desk desk;
  desk.registry->release(kContext, 1, [](bool) {}); // the news were faster than the call
  desk.registry->callBegins(kContext);
  desk.container[kContext] = {1, 3};
  CHECK(desk.registry->status(kContext)->calls == 1);
  desk.registry->callEnds(kContext);
  CHECK(desk.container.empty());
  CHECK_FALSE(desk.registry->status(kContext));
  CHECK(desk.toldOf(kContext) == ContextRegistry::Workers{1, 3});
}

TEST_CASE("a context that nobody has released outlives its calls", "[context_registry]") {
  Desk desk;
  desk.registry->callBegins(kContext);
  desk.container[kContext] = {1};
  desk.registry->callEnds(kContext);
  desk.registry->ownCallEnded(kContext, 2);
  CHECK(desk.container.size() == 1);
  CHECK_FALSE(desk.registry->status(kContext)->released);
  CHECK(desk.told.empty());
}

TEST_CASE(
    "a response that comes after the release takes the context with it, and the callee is told "
    "again",
    "[context_registry]") {
  Desk desk;
  desk.open(kContext, {1});
  desk.registry->release(kContext, kNobody, [](bool) {});
  desk.container[kContext] = {}; // libtorch reads the response
  desk.registry->ownCallEnded(kContext, 1);
  CHECK(desk.container.empty());
  CHECK(desk.told == std::vector<std::pair<WorkerId, ContextId>>{{1, kContext}, {1, kContext}});
}

TEST_CASE(
    "a response that comes while calls of a released context run waits for them",
    "[context_registry]") {
  Desk desk;
  desk.registry->callBegins(kContext);
  desk.container[kContext] = {};
  desk.registry->release(kContext, 1, [](bool) {});
  desk.registry->ownCallEnded(kContext, 2);
  CHECK(desk.container.size() == 1);
  desk.registry->callEnds(kContext);
  CHECK(desk.container.empty());
  CHECK(desk.toldOf(kContext) == ContextRegistry::Workers{2});
}

TEST_CASE("when one worker cannot be reached all are told, once", "[context_registry]") {
  Desk desk;
  int done = 0;
  desk.open(kContext, {1, 2});
  desk.registry->release(kContext, kNobody, [&](bool) { ++done; });
  desk.answers[0](false);
  CHECK(desk.toldOf(kContext) == ContextRegistry::Workers{1, 2, 3});
  desk.answers[1](false);
  CHECK(desk.told.size() == 3);
  CHECK(done == 0);
  desk.answers[2](false);
  CHECK(done == 1);
}

TEST_CASE(
    "a release is confirmed only where all that were told have confirmed it",
    "[context_registry]") {
  Desk desk;
  std::vector<bool> everywhere;
  desk.open(kContext, {1, 2});
  desk.registry->release(kContext, 3, [&](bool confirmed) { everywhere.push_back(confirmed); });
  SECTION("all have") {
    desk.answers[0](true);
    desk.answers[1](true);
    CHECK(everywhere == std::vector<bool>{true});
  }
  SECTION("one has not") {
    desk.answers[0](false);
    desk.answers[1](true);
    desk.answers[2](true);
    CHECK(everywhere == std::vector<bool>{false});
  }
}

TEST_CASE(
    "all are told when a worker goes that may have run a call after the release was there",
    "[context_registry]") {
  Desk desk;
  desk.open(kContext, {1});
  SECTION("given up before the release") {
    desk.registry->ownCallUnanswered(kContext, 1);
    desk.registry->release(kContext, kNobody, [](bool) {});
  }
  SECTION("given up while the release waits for another call") {
    desk.registry->callBegins(kContext);
    desk.registry->release(kContext, 1, [](bool) {});
    desk.registry->ownCallUnanswered(kContext, 1);
    desk.registry->callEnds(kContext);
  }
  SECTION("given up after the release") {
    desk.registry->release(kContext, kNobody, [](bool) {});
    desk.registry->ownCallUnanswered(kContext, 1);
  }
  desk.registry->ownCallEnded(kContext, 1);
  CHECK(desk.toldOf(kContext) == ContextRegistry::Workers{1});
  const auto rest = desk.registry->workerGone(1);
  CHECK(desk.toldOf(kContext) == ContextRegistry::Workers{1});
  rest();
  CHECK(desk.toldOf(kContext) == desk.peers);
  desk.told.clear();
  desk.registry->workerGone(1)();
  CHECK(desk.told.empty());
}

TEST_CASE("nobody is told when a worker goes that has answered", "[context_registry]") {
  Desk desk;
  desk.open(kContext, {1});
  desk.registry->ownCallUnanswered(kContext, 2);
  desk.registry->ownCallEnded(kContext, 1);
  desk.registry->release(kContext, kNobody, [](bool) {});
  desk.told.clear();
  desk.registry->workerGone(1)();
  CHECK(desk.told.empty());
}

TEST_CASE("released contexts are remembered for a bounded time and number", "[context_registry]") {
  SECTION("number") {
    Desk desk({std::chrono::seconds(600), 10});
    for (int64_t i = 0; i < 100; ++i) {
      desk.registry->release(contextOf(0, i), 1, [](bool) {});
      desk.registry->release(contextOf(0, i), 2, [](bool) {});
    }
    CHECK(desk.registry->remembered() <= 10);
  }
  SECTION("time") {
    Desk desk({std::chrono::seconds(0), 1000});
    for (int64_t i = 0; i < 100; ++i) {
      desk.registry->release(contextOf(0, i), 1, [](bool) {});
    }
    CHECK(desk.registry->remembered() < 100);
  }
  SECTION("a context that waits for its calls is released all the same") {
    Desk desk({std::chrono::seconds(600), 1});
    desk.open(kContext, {});
    desk.registry->callBegins(kContext);
    desk.registry->release(kContext, 1, [](bool) {});
    desk.registry->release(contextOf(0, 2), 1, [](bool) {});
    desk.registry->callEnds(kContext);
    CHECK(desk.container.empty());
  }
}

TEST_CASE("what a worker has opened goes when it leaves, and only that", "[context_registry]") {
  Desk desk;
  const ContextId own = contextOf(0);
  const ContextId theirs = contextOf(1);
  desk.open(own, {1, 2});
  desk.open(theirs, {1, 2});
  const auto rest = desk.registry->workerGone(1);
  CHECK(desk.container.count(theirs) == 0);
  CHECK(desk.told.empty());
  rest();
  CHECK(desk.container.count(own) == 1);
  CHECK(desk.toldOf(theirs) == ContextRegistry::Workers{2});
}

TEST_CASE("what a worker that left has opened waits for its calls", "[context_registry]") {
  Desk desk;
  const ContextId theirs = contextOf(1);
  desk.registry->callBegins(theirs);
  desk.container[theirs] = {};
  desk.registry->workerGone(1)();
  CHECK(desk.container.size() == 1);
  desk.registry->callEnds(theirs);
  CHECK(desk.container.empty());
}

TEST_CASE(
    "a call that begins once its context's creator has left opens it for no longer",
    "[context_registry]") {
  Desk desk;
  const ContextId theirs = contextOf(1);
  desk.registry->workerGone(1)();
  desk.registry->callBegins(theirs);
  desk.container[theirs] = {1};
  desk.registry->callEnds(theirs);
  CHECK(desk.container.empty());
}

TEST_CASE(
    "a new worker's contexts are not taken for those of the one before", "[context_registry]") {
  Desk desk;
  const ContextId theirs = contextOf(1);
  desk.registry->release(theirs, 1, [](bool) {});
  desk.registry->workerIsNew(1)();
  desk.registry->callBegins(theirs);
  desk.container[theirs] = {1};
  desk.registry->callEnds(theirs);
  CHECK(desk.container.count(theirs) == 1);
}

TEST_CASE(
    "when a worker of the context has been replaced all are told of the release",
    "[context_registry]") {
  Desk desk;
  desk.open(kContext, {1});
  desk.registry->workerIsNew(1)(); // the process before has called others in the context, perhaps
  desk.open(contextOf(0, 2), {1});
  desk.registry->release(kContext, kNobody, [](bool) {});
  desk.registry->release(contextOf(0, 2), kNobody, [](bool) {});
  CHECK(desk.toldOf(kContext) == desk.peers);
  CHECK(desk.toldOf(contextOf(0, 2)) == ContextRegistry::Workers{1});
}
