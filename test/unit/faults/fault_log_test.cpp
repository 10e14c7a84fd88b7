#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "backend/faults/fault_log.h"

using namespace torchwire::faults;

namespace {

// A file that is there for as long as the test.
struct TemporaryFile {
  TemporaryFile() {
    char name[] = "/tmp/torchwire_fault_log_XXXXXX";
    ::close(::mkstemp(name));
    path = name;
  }
  ~TemporaryFile() {
    ::unlink(path.c_str());
  }
  std::vector<std::string> lines() const {
    std::ifstream in(path);
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) {
      all.push_back(line);
    }
    return all;
  }
  std::string path;
};

Entry someEntry() {
  Entry entry;
  entry.time = 1700000000.25;
  entry.worker = "a";
  entry.revision = 3;
  entry.rule = "slow #1";
  entry.action = Action::delay;
  entry.phase = Phase::inFlight;
  entry.from = "b";
  entry.to = "a";
  entry.message = 258;
  entry.callId = 18446744073709551615u;
  entry.occurrence = 7;
  entry.seconds = 0.1;
  entry.byte = 0;
  return entry;
}

} // namespace

TEST_CASE("an entry is one line of JSON", "[fault_log]") {
  CHECK(
      toJson(someEntry()) ==
      R"({"time": 1700000000.25, "worker": "a", "revision": 3, "rule": "slow #1", "action": "delay", )"
      R"("phase": "in_flight", "from": "b", "to": "a", "message": 258, )"
      R"("call_id": 18446744073709551615, "occurrence": 7, "seconds": 0.1, "byte": 0})"
      "\n");
}

TEST_CASE("a text in JSON is quoted", "[fault_log]") {
  Entry entry = someEntry();
  entry.from = "a\"b\\c\n";
  CHECK(toJson(entry).find(R"("from": "a\"b\\c\u000a")") != std::string::npos);
}

TEST_CASE("entries are kept, and appended to the file", "[fault_log]") {
  const TemporaryFile file;
  {
    FaultLog log(file.path);
    log.add(someEntry());
    CHECK(file.lines().size() == 1); // at once: the fault may end the process
  }
  FaultLog log(file.path);
  log.add(someEntry());
  CHECK(log.entries().size() == 1);
  CHECK(log.entries()[0].rule == "slow #1");
  CHECK(file.lines().size() == 2);
}

TEST_CASE("a log without a file keeps its entries", "[fault_log]") {
  FaultLog log("");
  log.add(someEntry());
  CHECK(log.entries().size() == 1);
}

TEST_CASE("lines that threads write do not mix", "[fault_log]") {
  const TemporaryFile file;
  FaultLog first(file.path);
  FaultLog second(file.path);
  std::vector<std::thread> threads;
  for (FaultLog* log : {&first, &second, &first}) {
    threads.emplace_back([log] {
      for (int i = 0; i < 100; ++i) {
        log->add(someEntry());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const auto lines = file.lines();
  CHECK(lines.size() == 300);
  const std::string expected = toJson(someEntry());
  for (const std::string& line : lines) {
    CHECK(line + "\n" == expected);
  }
}

TEST_CASE("a log that cannot be opened says which", "[fault_log]") {
  CHECK_THROWS_WITH(
      FaultLog("/nowhere/log"), Catch::Contains("/nowhere/log") && Catch::Contains("No such file"));
}
