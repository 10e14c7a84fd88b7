// Requests that workers make of each other by themselves, and their answers.
#include <catch2/catch.hpp>
#include <stdexcept>

#include "backend/base/call_error.h"
#include "backend/base/timer.h"
#include "backend/node/own_calls.h"
#include "backend/wire/inline_limit.h"
#include "backend/wire/message_body.h"
#include "backend/wire/own_requests.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kTimeout{10000};
constexpr uint32_t kQuestion = own_requests::kObserve;
constexpr uint32_t kAnswer = own_requests::kObserved;

OwnCalls::Body bodyOf(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string textOf(const OwnCalls::Body& body) {
  return {body.begin(), body.end()};
}

/// A caller and a callee on one thread, without links.
struct Pair {
  ~Pair() {
    timer.stop();
  }

  OwnCalls::Worker caller() {
    return {
        calls,
        [this](WorkerId to, uint64_t, OutgoingFrame request) {
          if (to != 1) {
            return Error(ErrorCode::unreachable, "no such worker");
          }
          ReceivedFrame received = readHeader(loopBack(std::move(request)));
          received.incarnation = incarnation;
          for (int copy = 0; copy < copies; ++copy) {
            callee.serve(0, received);
          }
          return Error();
        },
        [](Waiter& waiter) { waiter.await(nullptr); },
        {},
        {},
        {}};
  }
  OwnCalls::Worker served() {
    return {
        calls,
        {},
        {},
        [](Task&& task) {
          task();
          return true;
        },
        [this](WorkerId, OutgoingFrame response) {
          ReceivedFrame received = readHeader(loopBack(std::move(response)));
          damage(received);
          calls.answer(received.header.callId, 1, std::move(received));
        },
        [](WorkerId, uint64_t of) { return of == 7; }};
  }
  std::string ask(const std::string& question, WorkerId to = 1) {
    return textOf(asking.ask(to, kQuestion, bodyOf(question), kTimeout));
  }

  Timer timer;
  CallTable calls{timer};
  uint64_t incarnation = 1;
  int copies = 1;
  std::function<void(ReceivedFrame&)> damage = [](ReceivedFrame&) {};
  OwnCalls asking{caller()};
  OwnCalls callee{served()};
};

void echo(WorkerId, const OwnCalls::Body& request, const OwnCalls::Reply& reply) {
  reply(request);
}

} // namespace

TEST_CASE("an own call is answered with what its handler replies", "[own_calls]") {
  Pair pair;
  pair.callee.handle(kQuestion, kAnswer, echo);
  CHECK(pair.callee.serves(kQuestion));
  CHECK_FALSE(pair.callee.serves(own_requests::kDeath));
  CHECK(pair.ask("where?") == "where?");
  CHECK(pair.ask("").empty());
  const std::string large(inlineLimit() + 1, 'x');
  CHECK(pair.ask(large) == large);
  CHECK(pair.calls.size() == 0);
}

TEST_CASE("a handler may reply later", "[own_calls]") {
  Pair pair;
  OwnCalls::Reply later;
  pair.callee.handle(
      kQuestion, kAnswer,
      [&](WorkerId, const OwnCalls::Body&, const OwnCalls::Reply& reply) { later = reply; });
  std::string answer;
  pair.asking.open(1, kQuestion, {}, kTimeout, [&](const OwnCalls::Answer& given) {
    answer = textOf(given.body);
  });
  CHECK(pair.calls.size() == 1);
  later(bodyOf("at last"));
  CHECK(answer == "at last");
}

TEST_CASE("what a handler throws is the answer", "[own_calls]") {
  Pair pair;
  pair.callee.handle(
      kQuestion, kAnswer, [](WorkerId, const OwnCalls::Body&, const OwnCalls::Reply&) {
        throw std::runtime_error("nobody knows");
      });
  CHECK_THROWS_WITH(pair.ask("where?"), "nobody knows");
}

TEST_CASE("a request that comes twice is served once", "[own_calls]") {
  Pair pair;
  int served = 0;
  pair.callee.handle(
      kQuestion, kAnswer, [&](WorkerId, const OwnCalls::Body&, const OwnCalls::Reply& reply) {
        ++served;
        reply({});
      });
  pair.copies = 2;
  pair.ask("where?");
  CHECK(served == 1);
  pair.ask("and now?");
  CHECK(served == 2);
}

TEST_CASE("a request of a former process is not served", "[own_calls]") {
  Pair pair;
  pair.callee.handle(kQuestion, kAnswer, echo);
  pair.incarnation = 7;
  bool ended = false;
  pair.asking.open(1, kQuestion, {}, kTimeout, [&](const OwnCalls::Answer&) { ended = true; });
  CHECK_FALSE(ended);
  pair.calls.failAll(Error(ErrorCode::shutDown, "the test is over"));
  CHECK(ended);
}

TEST_CASE("an own call that cannot be sent fails at once", "[own_calls]") {
  Pair pair;
  try {
    pair.ask("where?", 2);
    FAIL("it was answered");
  } catch (const CallError& e) {
    CHECK(e.error().code() == ErrorCode::unreachable);
  }
}

TEST_CASE("an answer that cannot be read fails the call", "[own_calls]") {
  Pair pair;
  pair.callee.handle(kQuestion, kAnswer, echo);
  SECTION("it ends too early") {
    pair.damage = [](ReceivedFrame& frame) { frame.frame.head.resize(FrameHeader::kSize + 1); };
  }
  SECTION("it has tensors") {
    pair.damage = [](ReceivedFrame& frame) { frame.frame.tensors.emplace_back(); };
  }
  SECTION("it says that a call has failed, and not how") {
    pair.damage = [](ReceivedFrame& frame) { frame.header.messageType = own_requests::kFailed; };
  }
  CHECK_THROWS_WITH(pair.ask("where?"), Catch::Matchers::StartsWith("cannot read the response"));
}

TEST_CASE("a request that cannot be read is answered with why", "[own_calls]") {
  Pair pair;
  pair.callee.handle(
      kQuestion, kAnswer,
      [](WorkerId, const OwnCalls::Body& request, const OwnCalls::Reply& reply) {
        ByteReader(request).number<uint64_t>();
        reply({});
      });
  CHECK_THROWS_WITH(pair.ask("abc"), "expected 8 more bytes, found 3");
}
