// Requests that are sent again until they are answered.
#include <catch2/catch.hpp>
#include <deque>
#include <optional>
#include <utility>

#include "backend/base/timer.h"
#include "backend/node/retried_requests.h"
#include "backend/wire/own_requests.h"
#include "test/unit/support/notifier.h"

using namespace torchwire;

namespace {

using Ended = RetriedRequests::Ended;

Outcome failure(ErrorCode code) {
  return {Error(code, "the test says so"), {}, nullptr};
}

Outcome answer(uint32_t type) {
  Outcome outcome;
  outcome.response.header.messageType = type;
  return outcome;
}

/// A request to worker 1, of which the attempts come to what the test says, one after another.
struct Stage {
  ~Stage() {
    timer.stop();
  }

  void send(std::deque<Outcome> outcomes) {
    planned = std::move(outcomes);
    requests.send(
        1,
        [this](MoveOnlyFunction<Outcome> completed) {
          ++attempts;
          Outcome next = answer(own_requests::kNoted);
          if (!planned.empty()) {
            next = std::move(planned.front());
            planned.pop_front();
          }
          incarnation = nextIncarnation;
          completed(std::move(next));
        },
        [this](Ended end) {
          ended = end;
          over = true;
          notifier.notify();
        });
  }
  bool isOver() {
    return notifier.waitUntil([this] { return over.load(); });
  }

  Notifier notifier;
  std::deque<Outcome> planned;
  std::atomic<int> attempts{0};
  std::atomic<uint64_t> incarnation{7};
  uint64_t nextIncarnation = 7; // from the first attempt on
  std::atomic<bool> closed{false};
  std::atomic<bool> over{false};
  std::atomic<Ended> ended{Ended::closed};
  Timer timer;
  RetriedRequests requests{
      {timer,
       [](Task&& task) {
         task();
         return true;
       },
       [this](WorkerId) { return incarnation.load(); }, [this] { return closed.load(); }}};
};

} // namespace

TEST_CASE("a request that is answered is sent once", "[retried_requests]") {
  Stage stage;
  stage.send({});
  REQUIRE(stage.isOver());
  CHECK(stage.ended == Ended::answered);
  CHECK(stage.attempts == 1);
}

TEST_CASE("a request that fails is sent again until it is answered", "[retried_requests]") {
  Stage stage;
  std::deque<Outcome> outcomes;
  outcomes.push_back(failure(ErrorCode::timeout));
  outcomes.push_back(failure(ErrorCode::linkBroken));
  outcomes.push_back(answer(own_requests::kNoted));
  stage.send(std::move(outcomes));
  REQUIRE(stage.isOver());
  CHECK(stage.ended == Ended::answered);
  CHECK(stage.attempts == 3);
}

TEST_CASE("a request is over where its callee is gone", "[retried_requests]") {
  const ErrorCode code =
      GENERATE(ErrorCode::workerDied, ErrorCode::peerLeft, ErrorCode::declaredDead);
  Stage stage;
  std::deque<Outcome> outcomes;
  outcomes.push_back(failure(ErrorCode::timeout));
  outcomes.push_back(failure(code));
  stage.send(std::move(outcomes));
  REQUIRE(stage.isOver());
  CHECK(stage.ended == Ended::calleeGone);
  CHECK(stage.attempts == 2);
}

TEST_CASE(
    "a request is over where another process has come in its callee's place",
    "[retried_requests]") {
  Stage stage;
  std::deque<Outcome> outcomes;
  outcomes.push_back(failure(ErrorCode::timeout));
  stage.nextIncarnation = 8;
  stage.send(std::move(outcomes));
  REQUIRE(stage.isOver());
  CHECK(stage.ended == Ended::calleeGone);
  CHECK(stage.attempts == 1);
}

TEST_CASE("no request is sent again where its worker shuts down", "[retried_requests]") {
  Stage stage;
  std::deque<Outcome> outcomes;
  SECTION("as the attempt says") {
    outcomes.push_back(failure(ErrorCode::shutDown));
  }
  SECTION("as the worker says") {
    stage.closed = true;
    outcomes.push_back(failure(ErrorCode::timeout));
  }
  stage.send(std::move(outcomes));
  REQUIRE(stage.isOver());
  CHECK(stage.ended == Ended::closed);
}

TEST_CASE(
    "a callee that answers with errors again and again is asked no more", "[retried_requests]") {
  Stage stage;
  std::deque<Outcome> outcomes;
  for (int attempt = 0; attempt < 6; ++attempt) {
    outcomes.push_back(answer(attempt % 2 == 0 ? own_requests::kException : own_requests::kFailed));
  }
  stage.send(std::move(outcomes));
  REQUIRE(stage.isOver());
  CHECK(stage.ended == Ended::calleeGone);
  CHECK(stage.attempts == 6);
}
