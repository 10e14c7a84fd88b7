#include "backend/log.h"

#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <functional>

using namespace torchwire;

namespace {

// What the action writes to standard error; at most what fits into a pipe.
std::string writtenBy(const std::function<void()>& action) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const int saved = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  ::close(ends[1]);
  action();
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  std::string text;
  std::array<char, 512> buffer{};
  for (ssize_t n; (n = ::read(ends[0], buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  ::close(ends[0]);
  return text;
}

} // namespace

TEST_CASE("a log line names the project and the level", "[log]") {
  CHECK(writtenBy([] { log(LogLevel::error, "it broke"); }) == "torchwire error: it broke\n");
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
