#include "rref/ledger/fork_ledger.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace torchwire {
namespace {

const GlobalId kRRef{0, 1};
const GlobalId kCreators{0, 2}; // forks
const GlobalId kChilds{0, 3};

class Table final : public ForkTable {
 public:
  void add(const GlobalId& rref, const GlobalId& fork) override {
    forks[rref].insert(fork);
  }
  Released remove(const GlobalId& rref, const GlobalId& fork) override {
    const auto found = forks.find(rref);
    if (found == forks.end() || found->second.erase(fork) == 0 || !found->second.empty()) {
      return nullptr;
    }
    forks.erase(found);
    return std::make_shared<int>();
  }
  bool awaitsValue(const GlobalId& rref) override {
    return awaiting.contains(rref);
  }
  bool has(const GlobalId& fork) const {
    const auto found = forks.find(kRRef);
    return found != forks.end() && found->second.contains(fork);
  }

  std::map<GlobalId, std::set<GlobalId>> forks;
  std::set<GlobalId> awaiting;
};

struct Owner {
  Table table;
  ForkLedger::Clock::time_point now;
  ForkLedger ledger{table, [this] { return now; }};
  int answers = 0;

  bool begin(const GlobalId& rref = kRRef, const GlobalId& fork = kCreators) {
    return ledger.begin(rref, fork, 1, [this] { ++answers; });
  }
  std::vector<ForkLedger::Released> gone(WorkerId worker) {
    ledger.workerGone(worker, Error(ErrorCode::workerDied, "it has died"));
    return ledger.reclaim(worker);
  }
  void create() {
    REQUIRE(begin());
    ledger.entered(kCreators);
    ledger.finished(kCreators);
  }
};

} // namespace

TEST_CASE(
    "a creation runs once, and all its copies are answered when it has run", "[fork_ledger]") {
  Owner owner;
  CHECK(owner.begin());
  CHECK_FALSE(owner.begin());
  CHECK(owner.answers == 0);
  owner.ledger.entered(kCreators);
  owner.ledger.finished(kCreators);
  CHECK(owner.answers == 2);
  CHECK_FALSE(owner.begin());
  CHECK(owner.answers == 3);
  CHECK(owner.table.has(kCreators));
}

TEST_CASE(
    "a copy of a creation that comes after the delete is answered and not run", "[fork_ledger]") {
  Owner owner;
  owner.create();
  CHECK(owner.ledger.remove(kRRef, kCreators));
  CHECK_FALSE(owner.begin());
  CHECK(owner.answers == 2);
  CHECK(owner.table.forks.empty());
}

TEST_CASE(
    "a delete that comes before its creation lets the value go once it is there", "[fork_ledger]") {
  Owner owner;
  CHECK_FALSE(owner.ledger.remove(kRRef, kCreators));
  CHECK(owner.begin()); // the program wants the function to run
  CHECK(owner.ledger.entered(kCreators));
  CHECK(owner.table.forks.empty());
  owner.ledger.finished(kCreators);
  CHECK(owner.answers == 1);
  CHECK_FALSE(owner.begin());
  CHECK(owner.ledger.running().empty());
}

TEST_CASE("a delete while the function runs lets the value go once it is there", "[fork_ledger]") {
  Owner owner;
  CHECK(owner.begin());
  SECTION("before the owner is entered") {
    owner.ledger.remove(kRRef, kCreators);
    CHECK(owner.ledger.entered(kCreators));
  }
  SECTION("after that") {
    CHECK_FALSE(owner.ledger.entered(kCreators));
    CHECK(owner.ledger.remove(kRRef, kCreators));
  }
  owner.ledger.finished(kCreators);
  CHECK_FALSE(owner.begin());
  CHECK(owner.table.forks.empty());
}

TEST_CASE("another's fork keeps the value that the creator has deleted early", "[fork_ledger]") {
  Owner owner;
  owner.ledger.remove(kRRef, kCreators);
  owner.ledger.add(kRRef, kChilds, 2);
  CHECK(owner.begin());
  CHECK_FALSE(owner.ledger.entered(kCreators));
  owner.ledger.finished(kCreators);
  CHECK(owner.table.has(kChilds));
  CHECK(owner.ledger.remove(kRRef, kChilds));
}

TEST_CASE("an RRef that is waited for before its creation is kept", "[fork_ledger]") {
  Owner owner;
  owner.table.awaiting.insert(kRRef);
  SECTION("when nobody has a fork of it yet") {
    owner.ledger.keepUntilEntered(kRRef);
  }
  SECTION("when another user goes") {
    owner.ledger.add(kRRef, kChilds, 2);
    owner.ledger.keepUntilEntered(kRRef);
    CHECK_FALSE(owner.ledger.remove(kRRef, kChilds));
  }
  SECTION("when another user has just gone") {
    owner.ledger.add(kRRef, kChilds, 2);
    CHECK_FALSE(owner.ledger.remove(kRRef, kChilds));
    owner.ledger.keepUntilEntered(kRRef);
  }
  CHECK(owner.table.forks.contains(kRRef));
  CHECK(owner.begin());
  owner.ledger.entered(kCreators);
  CHECK(owner.table.forks.at(kRRef) == std::set<GlobalId>{kCreators});
}

TEST_CASE("what is kept for its creation goes in the end", "[fork_ledger]") {
  Owner owner;
  owner.table.awaiting.insert(kRRef);
  owner.ledger.keepUntilEntered(kRRef);
  CHECK(owner.begin());
  SECTION("with its creator") {
    owner.ledger.entered(kCreators);
    owner.table.awaiting.clear();
    owner.ledger.finished(kCreators);
    CHECK(owner.ledger.remove(kRRef, kCreators));
  }
  SECTION("with its creator, though its value takes longer") {
    owner.ledger.entered(kCreators);
    CHECK(owner.ledger.remove(kRRef, kCreators));
    owner.ledger.finished(kCreators);
  }
  SECTION("with its creation, if its creator has gone before") {
    CHECK_FALSE(owner.ledger.remove(kRRef, kCreators));
    CHECK(owner.ledger.entered(kCreators));
  }
  SECTION("with a creation that comes to nothing") {
    owner.ledger.finished(kCreators);
  }
  CHECK(owner.table.forks.empty());
}

TEST_CASE("fork requests and deletes may come twice and in any order", "[fork_ledger]") {
  Owner owner;
  owner.create();
  SECTION("twice") {
    owner.ledger.add(kRRef, kChilds, 2);
    owner.ledger.add(kRRef, kChilds, 2);
    owner.ledger.remove(kRRef, kChilds);
    owner.ledger.remove(kRRef, kChilds);
  }
  SECTION("the delete first") {
    owner.ledger.remove(kRRef, kChilds);
    owner.ledger.add(kRRef, kChilds, 2);
  }
  SECTION("a copy of the request last") {
    owner.ledger.add(kRRef, kChilds, 2);
    owner.ledger.remove(kRRef, kChilds);
    owner.ledger.add(kRRef, kChilds, 2);
  }
  CHECK_FALSE(owner.table.has(kChilds));
  CHECK(owner.table.has(kCreators));
  CHECK(owner.ledger.holders().size() == 1);
}

TEST_CASE("a worker's creation on itself has no fork, and leaves nothing behind", "[fork_ledger]") {
  Owner owner;
  CHECK(owner.begin(kRRef, kRRef));
  CHECK_FALSE(owner.ledger.entered(kRRef));
  owner.ledger.finished(kRRef);
  CHECK(owner.answers == 1);
  CHECK(owner.table.forks.empty());
  CHECK(owner.ledger.running().empty());
  CHECK(owner.ledger.holders().empty());
}

TEST_CASE("a creation that ends without an RRef is answered all the same", "[fork_ledger]") {
  Owner owner;
  CHECK(owner.begin());
  CHECK_FALSE(owner.begin());
  owner.ledger.finished(kCreators);
  CHECK(owner.answers == 2);
}

TEST_CASE("the ledger tells who holds which fork", "[fork_ledger]") {
  Owner owner;
  CHECK(owner.begin());
  REQUIRE(owner.ledger.running().size() == 1);
  CHECK(owner.ledger.running()[0].rref == kRRef);
  CHECK(owner.ledger.running()[0].holder == 1);
  owner.ledger.entered(kCreators);
  owner.ledger.finished(kCreators);
  owner.ledger.add(kRRef, kChilds, 2);
  const auto holders = owner.ledger.holders();
  REQUIRE(holders.size() == 2);
  CHECK(holders.at(kCreators).holder == 1);
  CHECK(holders.at(kChilds).holder == 2);
  CHECK(holders.at(kChilds).rref == kRRef);
}

TEST_CASE("deleted forks are forgotten by and by", "[fork_ledger]") {
  Owner owner;
  SECTION("when no copy can be on its way any more") {
    owner.ledger.remove(kRRef, kChilds);
    owner.now += ForkLedger::kMemory + std::chrono::seconds(1);
    owner.ledger.remove(kRRef, kCreators);
    CHECK(owner.ledger.remembered() == 1);
  }
  SECTION("when there are too many") {
    for (size_t i = 0; i < ForkLedger::kMaxRemembered + 100; ++i) {
      owner.ledger.remove(kRRef, GlobalId{1, static_cast<int64_t>(i)});
    }
    CHECK(owner.ledger.remembered() == ForkLedger::kMaxRemembered);
    owner.ledger.add(kRRef, GlobalId{1, 0}, 1);
    CHECK(owner.table.has(GlobalId{1, 0}));
    owner.ledger.add(kRRef, GlobalId{1, 100}, 1);
    CHECK_FALSE(owner.table.has(GlobalId{1, 100}));
  }
}

TEST_CASE(
    "a worker that comes under the number of one that left may draw its ids again",
    "[fork_ledger]") {
  Owner owner;
  owner.create();
  owner.ledger.remove(kRRef, kCreators);
  owner.ledger.forgetWorker(0);
  owner.create();
  CHECK(owner.table.has(kCreators));
}

// ---- deaths ---------------------------------------------------------------------------------------

TEST_CASE("the forks of a worker that dies go, and with the last one the RRef", "[fork_ledger]") {
  Owner owner;
  owner.create(); // by worker 1
  owner.ledger.add(kRRef, kChilds, 2);
  CHECK(owner.gone(1).at(0) == nullptr);
  CHECK_FALSE(owner.table.has(kCreators));
  CHECK(owner.table.has(kChilds));
  CHECK(owner.gone(2).at(0) != nullptr);
  CHECK(owner.table.forks.empty());
  CHECK(owner.ledger.holders().empty());
}

// What can happen to a creator's fork and to that of its child, in any order, with the deaths of both anywhere between:
// in the end nothing may be left.
TEST_CASE("no order of messages and deaths leaves a fork of the dead behind", "[fork_ledger]") {
  enum Step {
    begin,
    entered,
    finished,
    childAdds,
    childDeletes,
    creatorDeletes,
    creatorDies,
    childDies
  };
  std::vector<Step> steps{begin,        entered,        finished,    childAdds,
                          childDeletes, creatorDeletes, creatorDies, childDies};
  size_t orders = 0;
  do {
    const auto at = [&](Step step) { return std::find(steps.begin(), steps.end(), step); };
    if (at(begin) > at(entered) || at(entered) > at(finished)) {
      continue;
    }
    for (const unsigned lost : {0U, 1U, 2U, 3U}) { // deletes that do not arrive
      Owner owner;
      bool runs = false;
      for (const Step step : steps) {
        switch (step) {
          case begin:
            runs = owner.begin();
            break;
          case entered:
            if (runs) {
              owner.ledger.entered(kCreators);
            }
            break;
          case finished:
            if (runs) {
              owner.ledger.finished(kCreators);
            }
            break;
          case childAdds:
            owner.ledger.add(kRRef, kChilds, 2);
            break;
          case childDeletes:
            if ((lost & 1U) == 0) {
              owner.ledger.remove(kRRef, kChilds);
            }
            break;
          case creatorDeletes:
            if ((lost & 2U) == 0) {
              owner.ledger.remove(kRRef, kCreators);
            }
            break;
          case creatorDies:
            owner.gone(1);
            break;
          case childDies:
            owner.gone(2);
            break;
        }
      }
      ++orders;
      REQUIRE(owner.table.forks.empty());
      REQUIRE(owner.ledger.holders().empty());
      REQUIRE(owner.ledger.running().empty());
    }
  } while (std::next_permutation(steps.begin(), steps.end()));
  CHECK(orders == 4 * 40320 / 6);
}

TEST_CASE("a worker that comes in place of a dead one may hold forks", "[fork_ledger]") {
  Owner owner;
  owner.gone(2);
  CHECK(owner.ledger.isGone(2));
  owner.ledger.forgetWorker(2);
  owner.ledger.add(kRRef, kChilds, 2);
  CHECK(owner.table.has(kChilds));
}

TEST_CASE("nothing is kept for a creation of a worker that is gone", "[fork_ledger]") {
  Owner owner;
  owner.table.awaiting.insert(kRRef);
  SECTION("that was waited for when it went") {
    CHECK_FALSE(owner.ledger.keepUntilEntered(kRRef));
    CHECK(owner.table.forks.contains(kRRef));
    const Error left(ErrorCode::peerLeft, "it has left");
    CHECK(owner.ledger.workerGone(kRRef.createdOn, left) == std::vector<GlobalId>{kRRef});
    CHECK(owner.table.forks.contains(kRRef)); // so that it can be given an error
    owner.ledger.reclaim(kRRef.createdOn);
  }
  SECTION("of which another user hears afterwards") {
    owner.gone(kRRef.createdOn);
    CHECK(owner.ledger.keepUntilEntered(kRRef).message() == "it has died");
  }
  CHECK(owner.table.forks.empty());
}

TEST_CASE("a creation that runs when its creator goes is waited for", "[fork_ledger]") {
  const GlobalId rref{1, 1}; // of worker 1
  Owner owner;
  CHECK(owner.begin(rref, kCreators));
  owner.table.awaiting.insert(rref);
  SECTION("where it was waited for before") {
    CHECK_FALSE(owner.ledger.keepUntilEntered(rref));
    CHECK(owner.ledger.workerGone(1, Error(ErrorCode::workerDied, "")).empty());
    owner.ledger.reclaim(1);
  }
  SECTION("where it is waited for afterwards") {
    owner.gone(1);
    CHECK_FALSE(owner.ledger.keepUntilEntered(rref));
  }
  CHECK(owner.table.forks.contains(rref));
  owner.ledger.entered(kCreators);
  CHECK(owner.table.forks.empty());
  CHECK(owner.ledger.whyNever(rref));
}

TEST_CASE("an RRef that went with its last fork will not come again", "[fork_ledger]") {
  Owner owner;
  owner.create(); // by worker 1
  SECTION("which the worker had") {
    owner.gone(1);
    CHECK(owner.ledger.whyNever(kRRef).message() == "it has died");
    owner.ledger.forgetWorker(1);
    CHECK(owner.ledger.whyNever(kRRef));
  }
  SECTION("which this worker had handed to it itself") {
    owner.table.add(kRRef, kChilds);
    owner.ledger.remove(kRRef, kCreators);
    owner.gone(2);
    CHECK(owner.ledger.reclaim(kRRef, kChilds, 2));
    CHECK(owner.ledger.whyNever(kRRef));
  }
  SECTION("which its user had dropped") {
    owner.ledger.remove(kRRef, kCreators);
    owner.gone(1);
    CHECK(
        owner.ledger.whyNever(kRRef).message() ==
        "the RRef is not at its owner any more: its last user has dropped it");
  }
  SECTION("but one that others still have may") {
    owner.ledger.add(kRRef, kChilds, 2);
    owner.gone(1);
    CHECK_FALSE(owner.ledger.whyNever(kRRef));
  }
}

TEST_CASE("nor will one whose creation its only fork's delete has overtaken", "[fork_ledger]") {
  Owner owner;
  owner.ledger.remove(kRRef, kCreators);
  CHECK_FALSE(owner.ledger.whyNever(kRRef)); // it may come yet
  owner.create();
  CHECK(owner.ledger.whyNever(kRRef));
}

TEST_CASE(
    "an RRef that its owner passes on before its value is there has not ended", "[fork_ledger]") {
  Owner owner;
  REQUIRE(owner.begin());
  owner.ledger.entered(kCreators);
  owner.ledger.remove(kRRef, kCreators);
  owner.table.awaiting.insert(kRRef);
  CHECK_FALSE(owner.ledger.keepUntilEntered(kRRef));
}

TEST_CASE("an RRef of a new worker with the same id has not ended", "[fork_ledger]") {
  const GlobalId rref{1, 1};
  Owner owner;
  REQUIRE(owner.begin(rref));
  owner.ledger.entered(kCreators);
  owner.ledger.finished(kCreators);
  owner.ledger.remove(rref, kCreators);
  REQUIRE(owner.ledger.whyNever(rref));
  owner.gone(1);
  owner.ledger.forgetWorker(1);
  CHECK_FALSE(owner.ledger.whyNever(rref));
}

TEST_CASE("what is asked for without owner or fork is let go", "[fork_ledger]") {
  Owner owner;
  owner.table.awaiting.insert(kRRef);
  CHECK(owner.ledger.dropUnforked(kRRef));
  owner.ledger.keepUntilEntered(kRRef);
  CHECK_FALSE(owner.ledger.dropUnforked(kRRef));
  CHECK(owner.table.forks.contains(kRRef));
}

// Somebody hands an RRef to its owner before its creation has come, if it comes at all, and its creator goes: in whatever
// order, whoever waits for it gets its value or is told that there will be none.
TEST_CASE("nobody waits for an RRef whose creator is gone", "[fork_ledger]") {
  const GlobalId rref{1, 1}; // of worker 1
  enum Step {
    begin,
    entered,
    finished,
    asked,
    childAdds,
    childDeletes,
    creatorDeletes,
    creatorGoes
  };
  std::vector<Step> steps{begin,     entered,      finished,       asked,
                          childAdds, childDeletes, creatorDeletes, creatorGoes};
  size_t orders = 0;
  do {
    const auto at = [&](Step step) { return std::find(steps.begin(), steps.end(), step); };
    if (at(begin) > at(entered) || at(entered) > at(finished)) {
      continue;
    }
    for (const bool comes : {true, false}) {
      Owner owner;
      bool waits = false;
      bool hasEntered = false;
      for (const Step step : steps) {
        switch (step) {
          case begin:
            if (comes) {
              REQUIRE(owner.begin(rref, kCreators));
            }
            break;
          case entered:
            if (comes) {
              hasEntered = true;
              owner.ledger.entered(kCreators);
            }
            break;
          case finished:
            if (comes) {
              owner.table.awaiting.erase(rref);
              waits = false;
              owner.ledger.finished(kCreators);
            }
            break;
          case asked: // the owner's handler has it from now on
            if (!hasEntered) {
              owner.table.awaiting.insert(rref);
              waits = !owner.ledger.keepUntilEntered(rref);
            }
            break;
          case childAdds:
            owner.ledger.add(rref, kChilds, 2);
            break;
          case childDeletes:
            owner.ledger.remove(rref, kChilds);
            break;
          case creatorDeletes:
            owner.ledger.remove(rref, kCreators);
            break;
          case creatorGoes:
            if (!owner.ledger.workerGone(1, Error(ErrorCode::workerDied, "")).empty()) {
              waits = false;
            }
            owner.ledger.reclaim(1);
            break;
        }
        // What is waited for stays in the table, or its creation would make another one.
        REQUIRE((!waits || hasEntered || owner.table.forks.contains(rref)));
      }
      ++orders;
      REQUIRE_FALSE(waits);
      REQUIRE(owner.table.forks.empty());
    }
  } while (std::next_permutation(steps.begin(), steps.end()));
  CHECK(orders == 2 * 40320 / 6);
}

} // namespace torchwire
