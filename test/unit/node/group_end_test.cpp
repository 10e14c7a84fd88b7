// Workers that leave their group together: each a node with a thread for its shutdown.
#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/call/metrics.h"
#include "backend/node/group_end.h"
#include "test/unit/support/memory_node.h"

using namespace torchwire;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kTimeout = 2 * Notifier::kPatience;

struct Member {
  Member(NodeWorld& world, WorkerId id, uint32_t worldSize) : node(world, id, worldSize) {}

  void start() {
    node.join();
    end =
        std::make_unique<GroupEnd>(GroupEnd::Worker{node.node(), node.membership(), calls, [this] {
                                                      if (interrupted) {
                                                        throw Interrupted();
                                                      }
                                                    }});
  }

  MemoryNode node;
  ActiveCalls calls;
  std::atomic<bool> interrupted{false};
  std::unique_ptr<GroupEnd> end;
};

/// Three workers of a static group, each of which does the same on a thread of its own.
struct Group : NodeWorld {
  Group() {
    for (WorkerId id = 0; id < 3; ++id) {
      members.push_back(std::make_unique<Member>(*this, id, 3));
    }
    REQUIRE(all([](Member& member) { member.start(); }) == std::vector<std::string>(3));
  }

  /// What each has thrown; empty: nothing.
  std::vector<std::string> all(const std::function<void(Member&)>& part) {
    std::vector<WorkerId> everybody{0, 1, 2};
    return some(everybody, part);
  }
  std::vector<std::string> some(
      const std::vector<WorkerId>& ids, const std::function<void(Member&)>& part) {
    std::vector<std::future<std::string>> ends;
    for (const WorkerId id : ids) {
      ends.push_back(std::async(std::launch::async, [&part, &member = *members[id]] {
        try {
          part(member);
          return std::string();
        } catch (const std::exception& e) {
          return std::string(e.what());
        } catch (const Interrupted&) {
          return std::string("interrupted");
        }
      }));
    }
    std::vector<std::string> errors;
    for (auto& end : ends) {
      errors.push_back(end.get());
    }
    return errors;
  }

  std::vector<std::unique_ptr<Member>> members;
};

const std::vector<std::string> kNoErrors(3);

} // namespace

TEST_CASE("all workers that meet get the same sum", "[group_end]") {
  Group group;
  std::atomic<int> right{0};
  std::atomic<bool> joining{false};
  CHECK(group.all([&](Member& member) {
    const int64_t number = member.node.record().id + 1;
    right += member.end->meet(kTimeout, [number] { return number; }) == 1 + 2 + 3 ? 1 : 0;
    joining = joining || member.end->isJoining();
  }) == kNoErrors);
  CHECK(right == 3);
  CHECK_FALSE(joining);
}

TEST_CASE("a static group ends when no call of any worker is active", "[group_end]") {
  Group group;
  std::atomic<bool> finished{false};
  std::atomic<bool> tooEarly{false};
  group.members[1]->calls.start();
  auto call = std::async(std::launch::async, [&] {
    const bool joins = group.notifier.waitUntil(
        [&] { return group.members[0]->end->isJoining() && group.members[2]->end->isJoining(); });
    finished = true;
    group.members[1]->calls.finish();
    return joins;
  });
  CHECK(group.all([&](Member& member) {
    member.end->join(kTimeout, /* hosts */ member.node.record().id == 0);
    tooEarly = tooEarly || !finished;
  }) == kNoErrors);
  CHECK(call.get());
  CHECK_FALSE(tooEarly);
}

TEST_CASE("a static group ends without a worker that has died", "[group_end]") {
  Group group;
  group.members[0]->node.processes().end(2);
  CHECK(group.some({0, 1}, [](Member& member) {
    member.end->meet(kTimeout, [] { return 0; });
    member.end->join(kTimeout, /* hosts */ false);
  }) == std::vector<std::string>(2));
}

TEST_CASE(
    "a static group ends by its workers' stores once the rendezvous store is gone", "[group_end]") {
  Group group;
  group.store.isGone = true;
  std::atomic<int> moved{0};
  CHECK(group.all([&](Member& member) {
    member.end->meet(kTimeout, [] { return 0; });
    member.end->join(kTimeout, /* hosts */ false);
    moved += member.node.node().storeIsGone() ? 1 : 0;
  }) == kNoErrors);
  CHECK(moved == 3);
}

TEST_CASE("a worker that is interrupted tells the others", "[group_end]") {
  Group group;
  group.members[1]->calls.start();
  group.members[1]->interrupted = true;
  const auto errors = group.all([](Member& member) { member.end->join(kTimeout, false); });
  CHECK(errors[1] == "interrupted");
  CHECK_THAT(errors[0], Contains("worker 'w1' (rank 1)"));
  CHECK(errors[0] == errors[2]);
  group.members[1]->calls.finish();
}

TEST_CASE("a worker that is closed breaks the shutdown off for all", "[group_end]") {
  Group group;
  group.members[2]->node.node().close();
  const auto errors = group.all([](Member& member) { member.end->join(kTimeout, false); });
  CHECK_THAT(errors[0], Contains("worker 'w2' (rank 2)"));
  CHECK(errors[0] == errors[1]);
  CHECK_FALSE(errors[2].empty());
}

TEST_CASE("the end of a group is in time, or says that it is not", "[group_end]") {
  Group group;
  group.members[0]->calls.start();
  const auto errors =
      group.some({0}, [](Member& member) { member.end->join(milliseconds(100), false); });
  CHECK_THAT(errors[0], Contains("100 ms") || Contains("0.1 s"));
  group.members[0]->calls.finish();
}

TEST_CASE("a worker leaves a dynamic group when no call of its own is active", "[group_end]") {
  NodeWorld world;
  MemoryNode first{world, 0};
  MemoryNode second{world, 1};
  ActiveCalls calls;
  GroupEnd end({second.node(), second.membership(), calls, [] {}});
  SECTION("and is on the list no more") {
    end.leave(kTimeout);
    MemoryNode third{world, 2};
    CHECK(third.links().statusOf(0));
    CHECK_FALSE(third.links().statusOf(1));
  }
  SECTION("or says that it took too long") {
    calls.start();
    CHECK_THROWS_WITH(end.leave(milliseconds(100)), Contains("100 ms") || Contains("0.1 s"));
    calls.finish();
  }
  SECTION("or what has interrupted it") {
    calls.start();
    GroupEnd interrupted({second.node(), second.membership(), calls, [] { throw Interrupted(); }});
    CHECK_THROWS_AS(interrupted.leave(kTimeout), Interrupted);
    calls.finish();
  }
}
