// The store that a worker serves to others, and to which one they go.
#include "backend/membership/peer_stores.h"

#include <catch2/catch.hpp>

#include "backend/base/bytes.h"
#include "backend/membership/shutdown_store.h"

using namespace torchwire;
using Operation = StoreRequest::Operation;
using std::chrono::seconds;
using Value = KeyValueStore::Value;

namespace {

/// Three workers, whose requests reach each other at once unless one of them is gone.
struct Trio {
  Trio() {
    for (WorkerId id = 0; id < 3; ++id) {
      stores.push_back(
          std::make_shared<PeerStores>(
              id,
              PeerStores::Links{
                  [this, id](WorkerId server, const std::vector<char>& request) {
                    ++asked;
                    if (gone.contains(server)) {
                      throw std::runtime_error("it is gone");
                    }
                    return stores[static_cast<size_t>(server)]->serve(id, request);
                  },
                  [this, id](WorkerId to, const std::vector<char>& request) {
                    told.insert(to);
                    stores[static_cast<size_t>(to)]->serve(id, request);
                  },
                  [this, id] {
                    std::set<WorkerId> living{0, 1, 2};
                    living.erase(id);
                    for (const WorkerId dead : known) {
                      living.erase(dead);
                    }
                    return living;
                  },
                  [](WorkerId worker) { return "worker with rank " + std::to_string(worker); }}));
    }
  }

  StoreAnswer add(WorkerId by, int64_t amount) {
    StoreRequest request;
    request.operation = Operation::add;
    request.place = stores[static_cast<size_t>(by)]->place();
    request.key = "counter";
    request.amount = amount;
    return stores[static_cast<size_t>(by)]->perform(request);
  }

  std::vector<std::shared_ptr<PeerStores>> stores;
  std::set<WorkerId> gone, known; // that they are
  std::set<WorkerId> told;
  int asked = 0;
};

constexpr StorePlace kRendezvous{};

} // namespace

TEST_CASE("requests to a store travel as bytes", "[peer_stores]") {
  StoreRequest request;
  request.operation = Operation::compareSet;
  request.place = {3, 7};
  request.key = "key";
  request.expected = {1, 2};
  request.value = {0, 255};
  request.amount = -5;
  std::vector<char> bytes = request.encode();
  const StoreRequest same = StoreRequest::decode(bytes);
  CHECK(same.operation == request.operation);
  CHECK(same.place == request.place);
  CHECK(same.key == request.key);
  CHECK(same.expected == request.expected);
  CHECK(same.value == request.value);
  CHECK(same.amount == request.amount);
  for (size_t length = 0; length < bytes.size(); ++length) {
    CHECK_THROWS_AS(
        StoreRequest::decode({bytes.begin(), bytes.begin() + static_cast<long>(length)}),
        FormatError);
  }
  bytes[0] = 17;
  CHECK_THROWS_AS(StoreRequest::decode(bytes), FormatError);
}

TEST_CASE("all go to the lowest rank that lives, and are told so", "[peer_stores]") {
  Trio trio;
  trio.gone = trio.known = {0};
  trio.stores[2]->moveOn(kRendezvous, "connection reset\nand a stack trace");
  CHECK(trio.stores[2]->place() == StorePlace{0, 1});
  CHECK(trio.stores[2]->reason() == "connection reset");
  CHECK(trio.stores[1]->place() == kRendezvous);
  CHECK(trio.add(2, 5).number == 5); // asks worker 1, which serves from then on
  CHECK(trio.stores[1]->place() == StorePlace{0, 1});
  CHECK(trio.told == std::set<WorkerId>{2});
  CHECK(trio.stores[1]->reason() == "worker with rank 2 could not reach it");
  CHECK(trio.add(1, 1).number == 6);
  CHECK(trio.asked == 1);
}

TEST_CASE("who serves a store for others comes over itself", "[peer_stores]") {
  Trio trio;
  trio.stores[1]->moveOn(kRendezvous, "why");
  CHECK(trio.add(1, 1).number == 1);
  for (const auto& stores : trio.stores) {
    CHECK(stores->place() == StorePlace{0, 0});
  }
}

TEST_CASE("a store that does not answer is left for the next, which is empty", "[peer_stores]") {
  Trio trio;
  trio.stores[2]->moveOn(kRendezvous, "why");
  trio.add(2, 1);
  trio.gone = {0};
  CHECK_THROWS_AS(trio.add(2, 1), StoreMoved);
  CHECK(trio.stores[2]->place() == StorePlace{0, 1});
  CHECK(trio.add(2, 1).number == 1);
  trio.gone = {0, 1};
  CHECK_THROWS_AS(trio.add(2, 1), StoreMoved);
  CHECK(trio.stores[2]->place() == StorePlace{0, 2});
  CHECK(trio.add(2, 1).number == 1);
}

TEST_CASE("after the highest rank comes the lowest that lives", "[peer_stores]") {
  Trio trio;
  trio.known = {0};
  trio.stores[1]->moveOn({0, -1}, "why");
  trio.stores[1]->moveOn({0, 1}, "why");
  CHECK(trio.stores[1]->place() == StorePlace{0, 2});
  trio.stores[1]->moveOn({0, 2}, "why");
  CHECK(trio.stores[1]->place() == StorePlace{1, 1});
}

TEST_CASE("who comes late to a store that others have left is sent after them", "[peer_stores]") {
  Trio trio;
  trio.known = {1, 2}; // to be told
  trio.stores[2]->moveOn(kRendezvous, "why");
  REQUIRE(trio.stores[2]->place() == StorePlace{0, 0});
  trio.stores[0]->moveOn(kRendezvous, "why");
  trio.stores[0]->moveOn({0, 0}, "why");
  REQUIRE(trio.stores[0]->place() == StorePlace{1, 0});
  CHECK_THROWS_AS(trio.add(2, 1), StoreMoved);
  CHECK(trio.stores[2]->place() == StorePlace{1, 0});
}

TEST_CASE("what stands is kept where a store is begun", "[peer_stores]") {
  Trio trio;
  LocalStore rendezvous;
  SystemClock clock;
  ShutdownStore store(rendezvous, clock);
  store.continueWith(trio.stores[1]);
  store.keep("all", {1});
  SECTION("in that of another, by who knows it") {
    trio.stores[1]->moveOn(kRendezvous, "why");
    CHECK_THROWS_AS(store.check("all"), StoreMoved);
    CHECK(trio.stores[0]->place() == StorePlace{0, 0});
  }
  SECTION("in its own, whoever asks for it") {
    trio.known = {0};
    trio.stores[2]->moveOn(kRendezvous, "why");
    trio.add(2, 1);
    CHECK_THROWS_AS(store.check("all"), StoreMoved);
  }
  CHECK(store.get("all") == Value{1});
  CHECK_FALSE(rendezvous.check("all"));
}

TEST_CASE("a store of another worker is not served", "[peer_stores]") {
  Trio trio;
  StoreRequest request;
  request.place = {0, 1};
  CHECK_THROWS_AS(trio.stores[0]->serve(2, request.encode()), FormatError);
  CHECK(trio.stores[0]->place() == kRendezvous);
}

namespace {

class SetClock : public Clock {
 public:
  TimePoint now() override {
    return time;
  }
  void sleepFor(std::chrono::nanoseconds duration) override {
    time += duration;
  }

  TimePoint time;
};

} // namespace

TEST_CASE("a worker that lives and does not answer is named", "[peer_stores]") {
  Trio trio;
  SetClock clock;
  trio.gone = {0};
  trio.stores[2]->moveOn(kRendezvous, "why");
  CHECK_NOTHROW(trio.stores[2]->expectAnswers(clock, seconds(1)));
  CHECK_THROWS_AS(trio.add(2, 1), StoreMoved);
  CHECK_NOTHROW(trio.stores[2]->expectAnswers(clock, seconds(1)));
  clock.sleepFor(seconds(1));
  SECTION("if that goes on") {
    CHECK_THROWS_WITH(
        trio.stores[2]->expectAnswers(clock, seconds(1)),
        "the RPC group cannot shut down gracefully: worker with rank 0 does not answer: it is "
        "gone");
  }
  SECTION("but not if it answers then, and comes over") {
    trio.gone.clear();
    CHECK_NOTHROW(trio.stores[2]->expectAnswers(clock, seconds(1)));
    CHECK(trio.stores[0]->place() == StorePlace{0, 1});
  }
  SECTION("nor if it has died") {
    trio.known = {0};
    CHECK_NOTHROW(trio.stores[2]->expectAnswers(clock, seconds(1)));
  }
}
