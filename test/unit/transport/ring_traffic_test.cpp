// A long stream of bytes through a ring, in pieces of random sizes, between two threads and between two
// processes, which sleep when there is nothing to do. TORCHWIRE_TEST_SEED repeats the run of one seed.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/transport/handshake_socket.h"
#include "backend/transport/memory_file.h"
#include "backend/transport/ring.h"
#include "test/unit/support/local_ring.h"
#include "test/unit/support/seeds.h"

using namespace torchwire;

namespace {

// What wakes one side. Also between processes.
class SleepersEvent {
 public:
  void set() const {
    eventfd_write(event_.get(), 1);
  }
  /// False if nobody sets it for so long that nobody will.
  bool wait() const {
    pollfd waiting{event_.get(), POLLIN, 0};
    eventfd_t count = 0;
    return poll(&waiting, 1, 10000) == 1 && eventfd_read(event_.get(), &count) == 0;
  }

 private:
  const Descriptor event_{eventfd(0, EFD_CLOEXEC)};
};

// How a stream is carried: all follows from the seed.
struct Plan {
  explicit Plan(unsigned theSeed) : seed(theSeed) {
    std::mt19937 random(seed);
    capacity = size_t{64} << random() % 8;
    if (seed % 20 == 0) {
      capacity = size_t{256} << 10; // where long copies are told part by part
    }
    total = capacity + random() % (20 * capacity);
    maxWrite = 1 + random() % (2 * capacity);
    maxRead = 1 + random() % (2 * capacity);
  }

  /// The byte of the stream at a position.
  char at(uint64_t position) const {
    const uint64_t mixed = (position + seed) * 0x9e3779b97f4a7c15u;
    return static_cast<char>(mixed >> 56);
  }

  unsigned seed;
  size_t capacity;
  uint64_t total;
  size_t maxWrite, maxRead;
};

struct Wakeups {
  SleepersEvent writers, readers;
};

// Both return what went wrong, or null.

const char* writeStream(const Plan& plan, RingMemory memory, const Wakeups& wakeups) {
  std::mt19937 random(plan.seed + 1);
  RingWriter writer(memory);
  std::vector<char> piece(plan.maxWrite);
  for (uint64_t position = 0; position < plan.total;) {
    const size_t length = std::min<uint64_t>(1 + random() % plan.maxWrite, plan.total - position);
    for (size_t i = 0; i < length; ++i) {
      piece[i] = plan.at(position + i);
    }
    const auto written = writer.write(piece.data(), length);
    if (!written) {
      return "the writer does not believe the reader's index";
    }
    position += *written;
    if (writer.takeReaderWakeup()) {
      wakeups.readers.set();
    }
    if (*written < length && writer.requestWakeup() && !wakeups.writers.wait()) {
      return "nobody woke the writer";
    }
  }
  return nullptr;
}

const char* readStream(const Plan& plan, RingMemory memory, const Wakeups& wakeups) {
  std::mt19937 random(plan.seed + 2);
  RingReader reader(memory);
  std::vector<char> piece(plan.maxRead);
  for (uint64_t position = 0; position < plan.total;) {
    const auto got = reader.read(piece.data(), 1 + random() % plan.maxRead);
    if (!got) {
      return "the reader does not believe the writer's index";
    }
    for (size_t i = 0; i < *got; ++i) {
      if (piece[i] != plan.at(position + i)) {
        return "the reader got a wrong byte";
      }
    }
    position += *got;
    if (*got != 0 && reader.takeWriterWakeup()) {
      wakeups.writers.set();
    }
    if (*got == 0 && reader.requestWakeup() && !wakeups.readers.wait()) {
      return "nobody woke the reader";
    }
  }
  return reader.isReady() ? "there is more in the ring than was written" : nullptr;
}

/// A process that ends with what `run` returns, or with this object.
class ChildProcess {
 public:
  template <typename Run>
  explicit ChildProcess(Run run) : id_(fork()) {
    if (id_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(run());
    }
  }
  ~ChildProcess() {
    if (id_ > 0) {
      kill(id_, SIGKILL);
      exitCode();
    }
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  int exitCode() {
    int status = 0;
    waitpid(std::exchange(id_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t id_;
};

RingMemory ringIn(const MemoryFile& file, size_t capacity) {
  return {reinterpret_cast<RingHeader*>(file.data()), file.data() + sizeof(RingHeader), capacity};
}

std::string orNothing(const char* complaint) {
  return complaint == nullptr ? "" : complaint;
}

} // namespace

TEST_CASE(
    "two threads carry any stream through a ring, and no sleeper is forgotten", "[ring_traffic]") {
  for (const unsigned seed : seeds(200)) {
    CAPTURE(seed);
    const Plan plan(seed);
    CAPTURE(plan.capacity, plan.total, plan.maxWrite, plan.maxRead);
    LocalRing ring(plan.capacity);
    const Wakeups wakeups;
    const char* complaint = nullptr;
    std::thread writing([&] { complaint = writeStream(plan, ring.memory(), wakeups); });
    const char* readersComplaint = readStream(plan, ring.memory(), wakeups);
    writing.join();
    CHECK(orNothing(readersComplaint).empty());
    CHECK(orNothing(complaint).empty());
    REQUIRE(ring.isMarginUntouched());
  }
}

/// In a child, which does not map what its parent does.
MemoryFile mappedAnew(const MemoryFile& parents, size_t size) {
  return MemoryFile::adopt(dup(parents.descriptor()), size);
}

TEST_CASE(
    "two processes carry any stream through a ring, and no sleeper is forgotten",
    "[ring_traffic]") {
  for (const unsigned seed : seeds(60)) {
    CAPTURE(seed);
    const Plan plan(seed);
    CAPTURE(plan.capacity, plan.total, plan.maxWrite, plan.maxRead);
    const size_t size = sizeof(RingHeader) + plan.capacity;
    const MemoryFile file = MemoryFile::create(size);
    const Wakeups wakeups;
    ChildProcess writing([&] {
      const MemoryFile theirs = mappedAnew(file, size);
      return writeStream(plan, ringIn(theirs, plan.capacity), wakeups) == nullptr ? 0 : 1;
    });
    REQUIRE(orNothing(readStream(plan, ringIn(file, plan.capacity), wakeups)).empty());
    REQUIRE(writing.exitCode() == 0);
  }
}

TEST_CASE("two rings between two processes carry streams both ways at once", "[ring_traffic]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    const Plan there(seed);
    const Plan back(seed + 1000);
    const size_t firstSize = sizeof(RingHeader) + there.capacity;
    const size_t secondSize = sizeof(RingHeader) + back.capacity;
    const MemoryFile first = MemoryFile::create(firstSize);
    const MemoryFile second = MemoryFile::create(secondSize);
    const Wakeups wakeupsThere, wakeupsBack;
    // Per process one thread for each direction.
    const auto run = [](auto write, auto read) {
      const char* complaint = nullptr;
      std::thread writing([&] { complaint = write(); });
      const char* readersComplaint = read();
      writing.join();
      return complaint != nullptr ? complaint : readersComplaint;
    };
    ChildProcess other([&] {
      const MemoryFile theirFirst = mappedAnew(first, firstSize);
      const MemoryFile theirSecond = mappedAnew(second, secondSize);
      const char* complaint =
          run([&] { return writeStream(back, ringIn(theirSecond, back.capacity), wakeupsBack); },
              [&] { return readStream(there, ringIn(theirFirst, there.capacity), wakeupsThere); });
      return complaint == nullptr ? 0 : 1;
    });
    const char* complaint =
        run([&] { return writeStream(there, ringIn(first, there.capacity), wakeupsThere); },
            [&] { return readStream(back, ringIn(second, back.capacity), wakeupsBack); });
    REQUIRE(orNothing(complaint).empty());
    REQUIRE(other.exitCode() == 0);
  }
}
