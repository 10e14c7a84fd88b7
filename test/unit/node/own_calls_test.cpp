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

  void send(WorkerId to, OutgoingFrame request, const Link::Sent& sent) {
    if (to != 1) {
      sent(Error(ErrorCode::unreachable, "no such worker"));
      return;
    }
    ReceivedFrame received = readHeader(loopBack(std::move(request)));
    received.incarnation = incarnation;
    for (int copy = 0; copy < copies; ++copy) {
      callee.serve(0, received);
    }
    sent(Error());
  }
  OwnCalls::Worker caller() {
    return {requests, [](Waiter& waiter) { waiter.await(nullptr); }, {}, {}, {}};
  }
  OwnCalls::Worker served() {
    return {
        requests,
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
  RequestSender requests{
      {calls, 0,
       [this](WorkerId to, OutgoingFrame request, const Link::Sent& sent) {
         send(to, std::move(request), sent);
       },
       [](WorkerId) {}}};
  OwnCalls asking{caller()};
  OwnCalls callee{served()};
};

void echo(WorkerId, const OwnCalls::Body& request, const OwnCalls::Reply& reply) {
  reply(request);
}

} // namespace

TEST_CASE("an own call is answered with what its handler replies", "[own_calls]") {
  Pair pair;
  pair.callee.handle(kQuestion, echo);
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
  pair.callee.handle(kQuestion, [&](WorkerId, const OwnCalls::Body&, const OwnCalls::Reply& reply) {
    later = reply;
  });
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
  pair.callee.handle(kQuestion, [](WorkerId, const OwnCalls::Body&, const OwnCalls::Reply&) {
    throw std::runtime_error("nobody knows");
  });
  CHECK_THROWS_WITH(pair.ask("where?"), "nobody knows");
}

TEST_CASE("a call that fails at the callee keeps its kind", "[own_calls]") {
  Pair pair;
  pair.callee.handle(kQuestion, [](WorkerId, const OwnCalls::Body&, const OwnCalls::Reply&) {
    throw CallError(Error(ErrorCode::timeout, "too late").to("w2"));
  });
  try {
    pair.ask("where?");
    FAIL("it was answered");
  } catch (const CallError& e) {
    CHECK(e.error().code() == ErrorCode::timeout);
    CHECK(e.error().worker() == "w2");
  }
}

TEST_CASE("a reply that is dropped is told of", "[own_calls]") {
  Pair pair;
  pair.callee.handle(kQuestion, [](WorkerId, const OwnCalls::Body&, const OwnCalls::Reply&) {});
  CHECK_THROWS_WITH(pair.ask("where?"), "this worker has no answer to the request");
}

TEST_CASE("a second reply, or what is thrown after one, is not sent", "[own_calls]") {
  Pair pair;
  int answers = 0;
  pair.damage = [&](ReceivedFrame&) { ++answers; };
  pair.callee.handle(kQuestion, [](WorkerId, const OwnCalls::Body&, const OwnCalls::Reply& reply) {
    reply(bodyOf("first"));
    reply(bodyOf("second"));
    throw std::runtime_error("third");
  });
  CHECK(pair.ask("where?") == "first");
  CHECK(answers == 1);
}

TEST_CASE("a request that comes twice is served once", "[own_calls]") {
  Pair pair;
  int served = 0;
  pair.callee.handle(kQuestion, [&](WorkerId, const OwnCalls::Body&, const OwnCalls::Reply& reply) {
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
  pair.callee.handle(kQuestion, echo);
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
  pair.callee.handle(kQuestion, echo);
  SECTION("it ends too early") {
    pair.damage = [](ReceivedFrame& frame) { frame.frame.head.resize(FrameHeader::kSize + 1); };
  }
  SECTION("it has tensors") {
    pair.damage = [](ReceivedFrame& frame) { frame.frame.tensors.emplace_back(); };
  }
  SECTION("it is an answer to something else") {
    pair.damage = [](ReceivedFrame& frame) { frame.header.messageType = own_requests::kNoted; };
  }
  SECTION("it says that a call has failed, and not how") {
    pair.damage = [](ReceivedFrame& frame) { frame.header.messageType = own_requests::kFailed; };
  }
  CHECK_THROWS_WITH(pair.ask("where?"), Catch::Matchers::StartsWith("cannot read the response"));
}

TEST_CASE("an exception of PyTorch's is the callee's error", "[own_calls]") {
  Pair pair;
  pair.callee.handle(kQuestion, echo);
  pair.damage = [](ReceivedFrame& frame) { frame.header.messageType = own_requests::kException; };
  CHECK_THROWS_WITH(pair.ask("RPCErr:2:injected"), "RPCErr:2:injected");
}

TEST_CASE("a request that cannot be read is answered with why", "[own_calls]") {
  Pair pair;
  pair.callee.handle(
      kQuestion, [](WorkerId, const OwnCalls::Body& request, const OwnCalls::Reply& reply) {
        ByteReader(request).number<uint64_t>();
        reply({});
      });
  CHECK_THROWS_WITH(pair.ask("abc"), "expected 8 more bytes, found 3");
}
