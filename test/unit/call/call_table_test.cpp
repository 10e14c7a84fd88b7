#include "backend/call/call_table.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <iterator>
#include <latch>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "test/unit/support/callback_ledger.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kNone{0};
constexpr std::chrono::hours kLong{1};

ReceivedFrame frameOf(char content) {
  ReceivedFrame received;
  received.frame.head = {content};
  return received;
}

// A timer and a table, with completions that must be called once.
struct Table {
  CallbackLedger ledger;
  Timer timer;
  CallTable calls{timer};

  ~Table() {
    timer.stop();
  }

  struct Call {
    uint64_t id;
    CallbackNote* note;
  };

  CallTable::Completion expect(CallbackNote& note) {
    return [&note](const Outcome& outcome) { note.add(outcome.error); };
  }
  Call open(WorkerId to, milliseconds timeout) {
    CallbackNote& note = ledger.note("a call to rank " + std::to_string(to));
    return {calls.open(to, {timeout}, expect(note)), &note};
  }
};

} // namespace

TEST_CASE("a call completes with its response", "[call_table]") {
  Table table;
  CallbackNote& note = table.ledger.note("the call");
  std::vector<char> response;
  const uint64_t id = table.calls.open(1, {kLong}, [&](Outcome outcome) {
    note.add(outcome.error);
    response = std::move(outcome.response.frame.head);
  });
  CHECK(table.calls.size() == 1);
  CHECK(table.calls.answer(id, 1, frameOf('r')));
  CHECK(note.succeeded());
  CHECK(response == std::vector<char>{'r'});
  CHECK(table.calls.size() == 0);
}

TEST_CASE("every call has an id of its own", "[call_table]") {
  Table table;
  const auto first = table.open(1, kNone);
  const auto second = table.open(1, kNone);
  CHECK(first.id != second.id);
  CHECK(table.calls.answer(second.id, 1, frameOf('2')));
  CHECK(second.note->called());
  CHECK_FALSE(first.note->called());
  CHECK(table.calls.answer(first.id, 1, frameOf('1')));
}

TEST_CASE("a second response is refused", "[call_table]") {
  Table table;
  const auto call = table.open(1, kLong);
  CHECK(table.calls.answer(call.id, 1, frameOf('1')));
  CHECK_FALSE(table.calls.answer(call.id, 1, frameOf('2')));
  CHECK_FALSE(table.calls.fail(call.id, Error(ErrorCode::linkBroken, "")));
}

TEST_CASE("of a call that has ended without its answer one may still come", "[call_table]") {
  Table table;
  const Error error(ErrorCode::linkBroken, "");
  const auto call = table.open(1, kLong);
  const uint64_t id = call.id;
  SECTION("it has failed") {
    table.calls.fail(id, error);
  }
  SECTION("it has been given up") {
    table.calls.giveUp(id, error);
  }
  SECTION("its peer is lost") {
    table.calls.takePeer(1, error)();
  }
  SECTION("its time is over") {
    const auto brief = table.open(1, milliseconds(1));
    REQUIRE(table.ledger.notifier().waitUntil([&] { return brief.note->called(); }));
    CHECK(table.calls.takeUnanswered(brief.id));
    table.calls.fail(id, error);
  }
  CHECK(table.calls.takeUnanswered(id));
  CHECK_FALSE(table.calls.takeUnanswered(id));
}

TEST_CASE("of a call that its answer has ended none may come", "[call_table]") {
  Table table;
  const auto call = table.open(1, kLong);
  SECTION("a result") {
    CHECK(table.calls.answer(call.id, 1, frameOf('1')));
  }
  SECTION("an error, of the worker that was called") {
    const Error error(ErrorCode::unreachable, "");
    CHECK_FALSE(table.calls.fail(call.id, error, 2));
    CHECK(table.calls.fail(call.id, error, 1));
  }
  CHECK_FALSE(table.calls.takeUnanswered(call.id));
}

TEST_CASE("only the newest calls without an answer are known", "[call_table]") {
  UnansweredCalls calls;
  for (uint64_t id = 0; id <= UnansweredCalls::kMost; ++id) {
    calls.add(id, {});
  }
  CHECK_FALSE(calls.take(0));
  CHECK(calls.take(1));
  CHECK(calls.take(UnansweredCalls::kMost));
}

TEST_CASE("what was done for a request is undone where that has not been sent", "[call_table]") {
  Table table;
  int undone = 0;
  const auto open = [&](WorkerId to) {
    const Undo undo([&] { ++undone; });
    return table.calls.open(to, {.undo = undo}, [](const Outcome&) {});
  };
  const Error sent(ErrorCode::linkBroken, "");
  SECTION("as its error says") {
    table.calls.fail(open(1), sent.notSent());
    CHECK(undone == 1);
  }
  SECTION("one by one") {
    const uint64_t unsent = open(1);
    open(1);
    table.calls.takePeer(1, sent, {}, {unsent})();
    CHECK(undone == 1);
  }
  SECTION("as is found out afterwards") {
    const uint64_t id = open(1);
    table.calls.fail(id, sent);
    CHECK(undone == 0);
    (*table.calls.takeUnanswered(id))();
    CHECK(undone == 1);
  }
  SECTION("but not after an answer") {
    table.calls.answer(open(1), 1, frameOf('1'));
    CHECK(undone == 0);
  }
}

TEST_CASE("a response to no call is refused", "[call_table]") {
  Table table;
  CHECK_FALSE(table.calls.answer(12345, 1, frameOf('r')));
}

TEST_CASE("a response of another worker than the callee is refused", "[call_table]") {
  Table table;
  const auto call = table.open(1, kLong);
  CHECK_FALSE(table.calls.answer(call.id, 2, frameOf('x')));
  CHECK_FALSE(call.note->called());
  CHECK(table.calls.answer(call.id, 1, frameOf('r')));
}

TEST_CASE("a call fails at its deadline with the words that PyTorch's users know", "[call_table]") {
  Table table;
  const auto call = table.open(1, milliseconds(5));
  REQUIRE(table.ledger.waitForAll());
  CHECK(call.note->error().code() == ErrorCode::timeout);
  CHECK(
      call.note->error().message() ==
      "RPC ran for more than set timeout (5 ms) and will now be marked with an error");
  CHECK_FALSE(table.calls.answer(call.id, 1, frameOf('r'))); // too late
  CHECK(table.calls.size() == 0);
}

TEST_CASE("calls fail at their own deadlines whatever the order of opening", "[call_table]") {
  Table table;
  const auto late = table.open(1, kLong);
  const auto soon = table.open(1, milliseconds(3));
  const auto never = table.open(1, kNone);
  REQUIRE(table.ledger.notifier().waitUntil([&] { return soon.note->called(); }));
  CHECK(soon.note->error().code() == ErrorCode::timeout);
  const auto next = table.open(1, milliseconds(3)); // the timer waits for the late one by now
  REQUIRE(table.ledger.notifier().waitUntil([&] { return next.note->called(); }));
  CHECK_FALSE(late.note->called());
  CHECK_FALSE(never.note->called());
  table.calls.failAll(Error(ErrorCode::shutDown, ""));
}

TEST_CASE("a call that is withdrawn is for its caller to complete", "[call_table]") {
  Table table;
  const auto ended = std::make_shared<bool>(false);
  const uint64_t id = table.calls.open(1, {kNone}, [ended](const Outcome&) { *ended = true; });
  CHECK(table.calls.withdraw(id, ErrorCode::unreachable));
  CHECK(ended.use_count() == 1); // what the completion held has gone with it
  CHECK_FALSE(*ended);
  CHECK_FALSE(table.calls.withdraw(id, ErrorCode::unreachable));
  CHECK_FALSE(table.calls.answer(id, 1, frameOf('r')));
}

TEST_CASE("a call without a time-out outlives those with one", "[call_table]") {
  Table table;
  const auto never = table.open(1, kNone);
  const auto soon = table.open(1, milliseconds(1));
  REQUIRE(table.ledger.notifier().waitUntil([&] { return soon.note->called(); }));
  CHECK_FALSE(never.note->called());
  CHECK(table.calls.answer(never.id, 1, frameOf('r')));
}

TEST_CASE("a call fails alone, with its peer, or with all", "[call_table]") {
  Table table;
  const auto alone = table.open(1, kLong);
  const auto ofPeer = table.open(1, kLong);
  const auto alsoOfPeer = table.open(1, kNone);
  const auto last = table.open(2, kLong);

  CHECK(table.calls.fail(alone.id, Error(ErrorCode::linkBroken, "not sent")));
  CHECK(alone.note->error().message() == "not sent");
  CHECK_FALSE(ofPeer.note->called());

  table.calls.takePeer(1, Error(ErrorCode::peerLeft, "gone"))();
  CHECK(ofPeer.note->error().code() == ErrorCode::peerLeft);
  CHECK(alsoOfPeer.note->error().code() == ErrorCode::peerLeft);
  CHECK_FALSE(last.note->called());

  table.calls.failAll(Error(ErrorCode::shutDown, "the end"));
  CHECK(last.note->error().code() == ErrorCode::shutDown);
  CHECK(table.calls.size() == 0);
}

TEST_CASE("who waits for a call is named at its end, however it ends", "[call_table]") {
  Table table;
  const auto waiter = std::make_shared<Waiter>();
  CallbackNote& note = table.ledger.note("the call");
  std::shared_ptr<Waiter> told;
  const uint64_t id = table.calls.open(1, {milliseconds(100)}, [&](Outcome outcome) {
    told = std::move(outcome.waiter);
    note.add(outcome.error);
  });
  REQUIRE(table.calls.await(id, waiter));
  const Error error(ErrorCode::linkBroken, "");
  SECTION("with an answer") {
    table.calls.answer(id, 1, frameOf('r'));
  }
  SECTION("alone") {
    table.calls.fail(id, error);
  }
  SECTION("with its peer") {
    table.calls.takePeer(1, error)();
  }
  SECTION("with all") {
    table.calls.failAll(error);
  }
  SECTION("at its deadline") {}
  REQUIRE(table.ledger.waitForAll());
  CHECK(told == waiter);
}

TEST_CASE("where nobody waits for a call, nobody is named at its end", "[call_table]") {
  Table table;
  auto told = std::make_shared<Waiter>();
  const uint64_t id =
      table.calls.open(1, {kLong}, [&](Outcome outcome) { told = std::move(outcome.waiter); });
  const auto other = table.open(1, kLong);
  CHECK(table.calls.await(other.id, std::make_shared<Waiter>()));
  table.calls.answer(id, 1, frameOf('r'));
  CHECK(told == nullptr);
  table.calls.answer(other.id, 1, frameOf('r'));
}

TEST_CASE("nobody waits for a call that there is not", "[call_table]") {
  Table table;
  const auto waiter = std::make_shared<Waiter>();
  CHECK_FALSE(table.calls.await(12345, waiter));
  const auto answered = table.open(1, kLong);
  table.calls.answer(answered.id, 1, frameOf('r'));
  CHECK_FALSE(table.calls.await(answered.id, waiter));
  const auto failed = table.open(1, kLong);
  table.calls.fail(failed.id, Error(ErrorCode::linkBroken, ""));
  CHECK_FALSE(table.calls.await(failed.id, waiter));
  CHECK(waiter.use_count() == 1);
}

TEST_CASE("only the first to wait for a call is its waiter", "[call_table]") {
  Table table;
  const auto first = std::make_shared<Waiter>();
  std::shared_ptr<Waiter> told;
  const uint64_t id =
      table.calls.open(1, {kLong}, [&](Outcome outcome) { told = std::move(outcome.waiter); });
  CHECK(table.calls.await(id, first));
  CHECK_FALSE(table.calls.await(id, std::make_shared<Waiter>()));
  table.calls.answer(id, 1, frameOf('r'));
  CHECK(told == first);
}

TEST_CASE("a completion may use the table", "[call_table]") {
  Table table;
  CallbackNote& inner = table.ledger.note("the call made by a completion");
  CallbackNote& outer = table.ledger.note("the outer call");
  const auto reopen = [&](const Outcome& outcome) {
    CHECK(table.calls.size() == 0);
    const uint64_t id = table.calls.open(1, {milliseconds(1)}, table.expect(inner));
    outer.add(outcome.error);
    table.calls.fail(id, Error(ErrorCode::linkBroken, ""));
  };
  SECTION("when it is answered") {
    table.calls.answer(table.calls.open(1, {kLong}, reopen), 1, frameOf('r'));
  }
  SECTION("when its peer fails") {
    table.calls.open(1, {kLong}, reopen);
    table.calls.takePeer(1, Error(ErrorCode::linkBroken, ""))();
  }
  CHECK(table.ledger.waitForAll());
}

TEST_CASE("a completion at the deadline may make the next call", "[call_table]") {
  Table table;
  CallbackNote& second = table.ledger.note("the second call");
  CallbackNote& first = table.ledger.note("the first call");
  table.calls.open(1, {milliseconds(1)}, [&](const Outcome& outcome) {
    table.calls.open(1, {milliseconds(1)}, table.expect(second));
    first.add(outcome.error);
  });
  CHECK(table.ledger.waitForAll());
}

TEST_CASE("the deadlines of many ended calls do not hide those of pending ones", "[call_table]") {
  Table table;
  std::vector<Table::Call> pending;
  for (int i = 0; i < 5000; ++i) { // several times what makes the table forget old deadlines
    if (i % 1000 == 0) {
      pending.push_back(table.open(2, milliseconds(300)));
    }
    const uint64_t id = table.calls.open(1, {milliseconds(200 + i % 200)}, [](const Outcome&) {});
    table.calls.answer(id, 1, frameOf('r'));
  }
  for (const Table::Call& call : pending) {
    REQUIRE(table.ledger.notifier().waitUntil([&] { return call.note->called(); }));
    CHECK(call.note->error().code() == ErrorCode::timeout);
  }
  CHECK(table.calls.size() == 0);
}

TEST_CASE("forgetting old deadlines keeps the pending ones in order", "[call_table]") {
  const unsigned seed = GENERATE(range(1u, 6u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  Table table;
  std::vector<Table::Call> soon;
  std::vector<Table::Call> late;
  for (int i = 0; i < 4000; ++i) {
    const bool isSoon = random() % 2 == 0;
    const milliseconds timeout = isSoon ? milliseconds(40 + random() % 40) : kLong;
    if (random() % 8 == 0) {
      (isSoon ? soon : late).push_back(table.open(2, timeout));
    } else {
      const uint64_t id = table.calls.open(1, {timeout}, [](const Outcome&) {});
      table.calls.answer(id, 1, frameOf('r'));
    }
  }
  const auto ended = [](const Table::Call& call) { return call.note->called(); };
  CHECK(table.ledger.notifier().waitUntil(
      [&] { return std::all_of(soon.begin(), soon.end(), ended); }));
  CHECK(std::none_of(late.begin(), late.end(), ended));
  table.calls.failAll(Error(ErrorCode::shutDown, ""));
}

TEST_CASE("a call that ends in many ways at once completes once", "[call_table]") {
  constexpr size_t kCalls = 2000;
  const unsigned seed = GENERATE(range(1u, 4u));
  CAPTURE(seed);
  Table table;
  std::vector<std::atomic<uint64_t>> ids(kCalls);
  std::latch start(5);
  const auto peerOf = [](size_t i) { return static_cast<WorkerId>(i % 4); };
  const auto forEachCall = [&](unsigned salt, auto&& action) {
    return std::thread([&, salt, action] {
      std::mt19937 random(seed * 100 + salt);
      start.arrive_and_wait();
      for (size_t i = 0; i < kCalls; ++i) {
        uint64_t id;
        while ((id = ids[i]) == 0) {
          std::this_thread::yield();
        }
        action(id, i, random);
      }
    });
  };
  const auto answer = [&](uint64_t id, size_t i, std::mt19937&) {
    table.calls.answer(id, peerOf(i), frameOf('r'));
  };
  const auto failSome = [&](uint64_t id, size_t, std::mt19937& random) {
    if (random() % 2 == 0) {
      table.calls.fail(id, Error(ErrorCode::linkBroken, "not sent"));
    }
  };
  const auto failPeers = [&](uint64_t, size_t, std::mt19937& random) {
    if (random() % 16 == 0) {
      table.calls.takePeer(peerOf(random()), Error(ErrorCode::linkBroken, "lost"))();
    }
  };
  std::vector<std::thread> threads;
  threads.push_back(forEachCall(1, answer));
  threads.push_back(forEachCall(2, answer));
  threads.push_back(forEachCall(3, failSome));
  threads.push_back(forEachCall(4, failPeers));

  std::mt19937 random(seed);
  start.arrive_and_wait();
  for (size_t i = 0; i < kCalls; ++i) {
    ids[i] = table.open(peerOf(i), milliseconds(random() % 4)).id;
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  table.calls.failAll(Error(ErrorCode::shutDown, "the end"));
  CHECK(table.ledger.waitForAll());
  CHECK(table.calls.size() == 0);
}

TEST_CASE("tracked calls are told of once, before they complete", "[call_table]") {
  Table table;
  std::vector<uint64_t> told;
  table.calls.whenTrackedEnd([&](const std::vector<CallTable::Key>& calls) {
    for (const auto& [to, id] : calls) {
      CHECK_FALSE(table.calls.contains(id));
      told.push_back(id);
    }
    return std::vector<CallTable::Key>();
  });
  const auto open = [&](WorkerId to, milliseconds timeout, bool tracked) {
    CallbackNote& note = table.ledger.note("a call");
    return table.calls.open(
        to, {.timeout = timeout, .tracked = tracked}, [&, tracked](const Outcome& outcome) {
          CHECK((!tracked || !told.empty()));
          note.add(outcome.error);
        });
  };
  const uint64_t answered = open(1, kLong, true);
  const uint64_t failed = open(1, kLong, true);
  const uint64_t lost = open(2, kLong, true);
  const uint64_t other = open(1, kLong, false);
  CHECK(table.calls.contains(answered));
  CHECK(table.calls.answer(answered, 1, frameOf('a')));
  CHECK(table.calls.fail(failed, Error(ErrorCode::linkBroken, "it broke")));
  CHECK(table.calls.fail(other, Error(ErrorCode::linkBroken, "it broke")));
  table.calls.takePeer(2, Error(ErrorCode::linkBroken, "it broke"))();
  CHECK(told == std::vector<uint64_t>{answered, failed, lost});
}

TEST_CASE("a call that is given up fails, and its callee is to be told", "[call_table]") {
  Table table;
  const auto call = table.open(3, kLong);
  const auto given = table.calls.giveUp(call.id, Error(ErrorCode::cancelled, "given up"));
  CHECK(given.ended);
  CHECK((given.tell && *given.tell == 3));
  CHECK(call.note->error().code() == ErrorCode::cancelled);
  CHECK(call.note->error().executed() == Executed::unknown);
  const auto again = table.calls.giveUp(call.id, Error(ErrorCode::cancelled, "given up"));
  CHECK_FALSE(again.ended);
  CHECK_FALSE(again.tell);
}

namespace {

constexpr WorkerId kSent = 1;
constexpr WorkerId kUnsent = 2;

std::vector<CallTable::Key> callsToUnsent(const std::vector<CallTable::Key>& calls) {
  std::vector<CallTable::Key> unsent;
  std::copy_if(
      calls.begin(), calls.end(), std::back_inserter(unsent),
      [](const CallTable::Key& call) { return call.to == kUnsent; });
  return unsent;
}

} // namespace

TEST_CASE("a time-out says whether the request has been sent", "[call_table]") {
  Table table;
  table.calls.whenTrackedEnd(callsToUnsent);
  const auto errorOf = [&](WorkerId to) {
    std::promise<Error> error;
    table.calls.open(
        to, {.timeout = milliseconds(20), .tracked = true},
        [&](const Outcome& outcome) { error.set_value(outcome.error); });
    return error.get_future().get();
  };
  const Error sent = errorOf(kSent);
  const Error unsent = errorOf(kUnsent);
  CHECK(unsent.message().starts_with(sent.message()));
  CHECK(sent.message().find("has not been sent") == std::string::npos);
  CHECK(unsent.message().find("has not been sent") != std::string::npos);
  CHECK(unsent.message().find("max_bytes_in_flight") != std::string::npos);
  CHECK(sent.code() == ErrorCode::timeout);
  CHECK(sent.executed() == Executed::unknown);
  CHECK(unsent.code() == ErrorCode::overloaded);
  CHECK(unsent.executed() == Executed::no);
}

TEST_CASE("of a lost peer's calls those that have not been sent are known", "[call_table]") {
  Table table;
  table.calls.whenTrackedEnd(callsToUnsent);
  const auto openTo = [&](WorkerId to, bool tracked) {
    CallbackNote& note = table.ledger.note("a call");
    table.calls.open(
        to, {.tracked = tracked}, [&](const Outcome& outcome) { note.add(outcome.error); });
    return &note;
  };
  const CallbackNote* const sent = openTo(kSent, true);
  const CallbackNote* const unsent = openTo(kUnsent, true);
  const CallbackNote* const untracked = openTo(kUnsent, false);
  const Error lost(ErrorCode::linkBroken, "it broke");
  table.calls.takePeer(kSent, lost)();
  table.calls.takePeer(kUnsent, lost)();
  CHECK(sent->error().executed() == Executed::unknown);
  CHECK(untracked->error().executed() == Executed::unknown);
  CHECK(unsent->error().executed() == Executed::no);
  CHECK(unsent->error().message() == "it broke");
}

TEST_CASE("of a lost peer's calls the links know which have not gone out", "[call_table]") {
  Table table;
  const auto open = [&](CallbackNote& note) {
    return table.calls.open(1, {kNone}, [&](const Outcome& outcome) { note.add(outcome.error); });
  };
  CallbackNote& waiting = table.ledger.note("a call that waits for a link");
  CallbackNote& received = table.ledger.note("a call that has been received");
  CallbackNote& other = table.ledger.note("another call");
  const uint64_t unsentId = open(waiting);
  const uint64_t receivedId = open(received);
  open(other);
  Task complete = table.calls.takePeer(
      1, Error(ErrorCode::linkBroken, "it broke"), {receivedId, unsentId}, {unsentId});
  CHECK(table.calls.size() == 0);
  CHECK_FALSE(waiting.called());
  complete();
  CHECK(waiting.error().executed() == Executed::no);
  CHECK(received.error().executed() == Executed::yes);
  CHECK(other.error().executed() == Executed::unknown);
}

TEST_CASE("a call that is given up before it was sent has not run", "[call_table]") {
  Table table;
  table.calls.whenTrackedEnd(callsToUnsent);
  CallbackNote& note = table.ledger.note("a call");
  const uint64_t id = table.calls.open(
      kUnsent, {.timeout = kLong, .tracked = true},
      [&](const Outcome& outcome) { note.add(outcome.error); });
  const auto given = table.calls.giveUp(id, Error(ErrorCode::cancelled, "given up"));
  CHECK(given.ended);
  CHECK_FALSE(given.tell); // there is nothing to tell of
  CHECK(note.error().executed() == Executed::no);
}

TEST_CASE("limited calls are told of when they time out, and only then", "[call_table]") {
  Table table;
  std::promise<uint64_t> told;
  table.calls.whenLimitedExpire([&](const CallTable::Key& call) {
    CHECK(call.to == 2);
    told.set_value(call.id); // throws if it is called twice
  });
  const auto open = [&](WorkerId to, milliseconds timeout, bool limited) {
    CallbackNote& note = table.ledger.note("a call");
    return table.calls.open(
        to, {.timeout = timeout, .limited = limited},
        [&](const Outcome& outcome) { note.add(outcome.error); });
  };
  open(1, milliseconds(1), false);
  const uint64_t answered = open(1, milliseconds(10), true);
  CHECK(table.calls.answer(answered, 1, frameOf('a')));
  const uint64_t expires = open(2, milliseconds(20), true);
  CHECK(told.get_future().get() == expires);
}

TEST_CASE("the ids of calls begin where they are told to", "[call_table]") {
  Timer timer;
  CallTable calls(timer, 4711);
  CHECK(calls.open(1, {kNone}, [](const Outcome&) {}) == 4711);
  CHECK(calls.open(1, {kNone}, [](const Outcome&) {}) == 4712);
}
