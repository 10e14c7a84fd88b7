#include "backend/call/trace_log.h"

#include <catch2/catch.hpp>

using namespace torchwire;

namespace {

TraceLog::Event eventOf(uint64_t call) {
  TraceLog::Event event;
  event.callId = call;
  return event;
}

} // namespace

TEST_CASE("nothing is kept but between start and stop", "[trace_log]") {
  TraceLog log;
  CHECK_FALSE(log.isOn());
  log.add(eventOf(1));
  log.start(10);
  CHECK(log.isOn());
  log.add(eventOf(2));
  CHECK(log.stop().events.size() == 1);
  log.add(eventOf(3));
  log.start(10);
  CHECK(log.stop().events.empty());
}

TEST_CASE("what there is no room for is counted", "[trace_log]") {
  TraceLog log;
  log.start(3);
  for (uint64_t call = 0; call < 8; ++call) {
    log.add(eventOf(call));
  }
  const auto taken = log.stop();
  CHECK(taken.events.size() == 3);
  CHECK(taken.lost == 5);
}

TEST_CASE("notes take their room from the same store as calls", "[trace_log]") {
  TraceLog log;
  TraceLog::Note note;
  note.subject = "7.0.1";
  log.add(note);
  log.start(2);
  log.add(note);
  log.add(eventOf(1));
  log.add(note);
  const auto taken = log.stop();
  REQUIRE(taken.notes.size() == 1);
  CHECK(taken.notes[0].subject == "7.0.1");
  CHECK(taken.events.size() == 1);
  CHECK(taken.lost == 1);
}

TEST_CASE("the reading of an answer is noted with its time", "[trace_log]") {
  TraceLog log;
  {
    const TraceLog::Reading unnoticed(log, 1, 1);
  }
  log.start(10);
  {
    const TraceLog::Reading reading(log, 4, 17);
  }
  const auto taken = log.stop();
  REQUIRE(taken.events.size() == 1);
  CHECK(taken.events[0].kind == TraceLog::Kind::reading);
  CHECK(taken.events[0].peer == 4);
  CHECK(taken.events[0].callId == 17);
  CHECK(taken.events[0].begun <= taken.events[0].ended);
}

TEST_CASE("the making of a call is as long as its scope", "[trace_log]") {
  using Clock = TraceLog::Clock;
  const auto otherwise = Clock::now() + std::chrono::hours(1);
  TraceLog log;
  log.start(1);
  {
    const TraceLog::Making making(&log);
    CHECK(TraceLog::Making::begunOr(otherwise) < otherwise);
    const TraceLog::Making none(nullptr);
    CHECK(TraceLog::Making::begunOr(otherwise) == otherwise);
  }
  CHECK(TraceLog::Making::begunOr(otherwise) == otherwise);
}
