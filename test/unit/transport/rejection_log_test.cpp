#include "backend/transport/rejection_log.h"

#include <catch2/catch.hpp>

#include "backend/base/log.h"
#include "test/unit/support/written_by.h"

using namespace torchwire;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr int kLines = 10; // within any ten seconds

const std::string kLine =
    "torchwire warning: the acceptor refused a connection from an unknown peer: it is odd\n";

std::string untold(int refusals) {
  return "torchwire warning: the acceptor refused " + std::to_string(refusals) +
      " more connections in the meantime\n";
}

std::string repeated(const std::string& line, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) {
    text += line;
  }
  return text;
}

// A log, a clock of its own, and what the log writes.
class Refusals {
 public:
  std::string note(int times) {
    return writtenBy([&] {
      for (int i = 0; i < times; ++i) {
        log_.note("an unknown peer", "it is odd", now);
      }
    });
  }

  RejectionLog::Clock::time_point now{std::chrono::hours(1)};

 private:
  RejectionLog log_{"the acceptor"};
};

// Meson's other tests run with the warnings off.
bool warningsAreOff() {
  if (!logEnabled(LogLevel::warning)) {
    WARN("TORCHWIRE_LOG_LEVEL hides what this is about");
    return true;
  }
  return false;
}

} // namespace

TEST_CASE("a refusal is told with who, where and why", "[rejection_log]") {
  if (warningsAreOff()) {
    return;
  }
  Refusals refusals;
  CHECK(refusals.note(1) == kLine);
  CHECK(refusals.note(1) == kLine);
}

TEST_CASE("a log of refusals writes only so many lines in ten seconds", "[rejection_log]") {
  if (warningsAreOff()) {
    return;
  }
  Refusals refusals;
  CHECK(refusals.note(kLines) == repeated(kLine, kLines));
  CHECK(refusals.note(1000).empty());
  refusals.now += milliseconds(9999);
  CHECK(refusals.note(1).empty());
}

TEST_CASE("refusals that were not told are counted in one line later", "[rejection_log]") {
  if (warningsAreOff()) {
    return;
  }
  Refusals refusals;
  refusals.note(kLines + 1234);
  refusals.now += seconds(10);
  CHECK(refusals.note(1) == untold(1234) + kLine);
  CHECK(refusals.note(kLines + 5) == repeated(kLine, kLines - 1));
  refusals.now += std::chrono::hours(1);
  CHECK(refusals.note(1) == untold(6) + kLine);
}

TEST_CASE("where all refusals were told none are counted", "[rejection_log]") {
  if (warningsAreOff()) {
    return;
  }
  Refusals refusals;
  refusals.note(kLines);
  refusals.now += seconds(10);
  CHECK(refusals.note(1) == kLine);
}

TEST_CASE("a few refusals now and then are all told", "[rejection_log]") {
  if (warningsAreOff()) {
    return;
  }
  Refusals refusals;
  for (int i = 0; i < 100; ++i) {
    refusals.now += milliseconds(1500); // seven in ten seconds
    REQUIRE(refusals.note(1) == kLine);
  }
}
