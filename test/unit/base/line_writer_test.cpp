#include "backend/base/line_writer.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <sstream>
#include <string>

#include "backend/base/log.h"
#include "test/unit/support/written_by.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

constexpr std::chrono::seconds kPatience{30};

/// A pipe whose writing end is already full, as where nobody reads a program's errors.
class FullPipe {
 public:
  FullPipe() {
    REQUIRE(::pipe(ends_.data()) == 0);
    ::fcntl(ends_[1], F_SETFL, O_NONBLOCK);
    while (::write(ends_[1], "x", 1) == 1) {
      ++filling_;
    }
    ::fcntl(ends_[1], F_SETFL, 0);
  }
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;

  int end() const {
    return ends_[1];
  }

  /// What comes behind the filling, up to the `last` text.
  std::string readTo(const std::string& last) {
    std::string text;
    std::array<char, 4096> buffer{};
    while (text.find(last) == std::string::npos) {
      const ssize_t n = ::read(ends_[0], buffer.data(), buffer.size());
      REQUIRE(n > 0);
      text.append(buffer.data(), static_cast<size_t>(n));
    }
    text.erase(0, filling_);
    filling_ = 0;
    return text;
  }

 private:
  std::array<int, 2> ends_{}; // stay open, as the writer does
  size_t filling_ = 0;
};

} // namespace

TEST_CASE("lines are written in order", "[line_writer]") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  LineWriter& writer = LineWriter::make(ends[1], 1000);
  writer.add("one\n");
  writer.add("two\n");
  REQUIRE(writer.flush(kPatience));
  std::array<char, 100> buffer{};
  const ssize_t n = ::read(ends[0], buffer.data(), buffer.size());
  CHECK(std::string(buffer.data(), static_cast<size_t>(n)) == "one\ntwo\n");
}

TEST_CASE("who has a line does not wait for who reads it", "[line_writer]") {
  FullPipe pipe;
  LineWriter& writer = LineWriter::make(pipe.end(), 100);
  for (int i = 0; i < 1000; ++i) {
    writer.add("line " + std::to_string(i) + "\n"); // would never return
  }
  CHECK_FALSE(writer.flush(milliseconds(1)));

  std::istringstream text(pipe.readTo("were dropped, since"));
  int lines = 0;
  int last = -1; // a line that finds room again follows those that were dropped
  for (std::string line; std::getline(text, line) && line.starts_with("line "); ++lines) {
    const int number = std::stoi(line.substr(std::string("line ").size()));
    CHECK(number > last);
    last = number;
  }
  CHECK(lines >= 10);
  CHECK(lines <= 20);
  REQUIRE(writer.flush(kPatience));
  writer.add("another\n"); // there is room again
  CHECK(pipe.readTo("another\n").ends_with("another\n"));
}

TEST_CASE("a line that is longer than the queue loses its end", "[line_writer]") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  LineWriter& writer = LineWriter::make(ends[1], 10);
  writer.add("a line of more than that\n");
  REQUIRE(writer.flush(kPatience));
  std::array<char, 100> buffer{};
  const ssize_t n = ::read(ends[0], buffer.data(), buffer.size());
  CHECK(std::string(buffer.data(), static_cast<size_t>(n)) == "a line of\n");
}

TEST_CASE("a forked child logs", "[line_writer]") {
  const std::string text = writtenBy([] {
    log(LogLevel::error, "the parent");
    flushLog(kPatience); // or it could come second
    const pid_t child = ::fork();
    if (child == 0) {
      log(LogLevel::error, "the child");
      ::_exit(flushLog(kPatience) ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  });
  CHECK(text == "torchwire error: the parent\ntorchwire error: the child\n");
}
