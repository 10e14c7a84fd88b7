#include "backend/base/log.h"

#include <catch2/catch.hpp>

#include "test/unit/support/written_by.h"

using namespace torchwire;

TEST_CASE("a log line names the project and the level", "[log]") {
  CHECK(writtenBy([] { log(LogLevel::error, "it broke"); }) == "torchwire error: it broke\n");
}

TEST_CASE("text of others steers no terminal", "[log]") {
  const std::string text = writtenBy([] { log(LogLevel::error, "a\x1b[31m\n\tb\xc2\x9b"); });
  CHECK(text == "torchwire error: a\\x1b[31m\n\tb\\xc2\\x9b\n");
}

TEST_CASE("only lines of the enabled levels are written", "[log]") {
  for (const LogLevel level :
       {LogLevel::error, LogLevel::warning, LogLevel::info, LogLevel::debug}) {
    const std::string text = writtenBy([&] { log(level, "text"); });
    CHECK(text.empty() != logEnabled(level));
  }
}

TEST_CASE("errors are always written", "[log]") {
  CHECK(logEnabled(LogLevel::error));
}
