// What a door makes of guests that do not belong there.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <deque>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/log.h"
#include "test/unit/door_under_test.h"
#include "test/unit/open_files.h"
#include "test/unit/written_by.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr milliseconds kShort{50};
constexpr milliseconds kTick{1}; // libuv counts in whole milliseconds

DoorLimits impatient() {
  return {.patience = kShort, .mostGuests = 256, .shortestStay = milliseconds(0)};
}

HandshakeBytes bytesOf(const std::string& text) {
  return {text.begin(), text.end()};
}

/// A door that is to be as it was when all strangers have gone: no file more, and honest guests come in.
class BesiegedDoor : public DoorUnderTest {
 public:
  explicit BesiegedDoor(Medium medium, DoorLimits limits = DoorLimits())
      : DoorUnderTest(medium, limits), before_(openFiles()) {}

  /// Waits until no file more is open than at the beginning: letting go takes the loop a moment.
  bool isAsBefore() {
    const auto begin = Clock::now();
    while (openFiles() != before_ && Clock::now() - begin < Bell::kPatience) {
      onLoop(*loop, [] {});
    }
    return openFiles() == before_ && admitted() == 0 && letsHonestGuestIn();
  }

 private:
  const ptrdiff_t before_;
};

// A greeting of the door's own group, and what the applicant makes of the challenge.
HandshakeBytes proofFor(Visitor& visitor, const DoorUnderTest& door) {
  Applicant applicant(door.key, door.medium, kDoorLane);
  visitor.send(applicant.greet());
  return applicant.answerChallenge(visitor.receive(kChallengeSize)).send;
}

int foreignMemory(size_t size, int seals) {
  const int descriptor = memfd_create("foreign", MFD_ALLOW_SEALING | MFD_CLOEXEC);
  if (ftruncate(descriptor, static_cast<off_t>(size)) != 0 ||
      fcntl(descriptor, F_ADD_SEALS, seals) != 0) {
    throw std::runtime_error("no memory for this test");
  }
  return descriptor;
}

} // namespace

// ---- who says nothing, or nonsense ----------------------------------------------------------------

TEST_CASE("a guest that says too little in time is let go", "[door_stranger]") {
  BesiegedDoor door(GENERATE(Medium::shm, Medium::tcp), impatient());
  const std::string said = GENERATE("", "T", "TWIR", "GET / HTTP/1.1\r\n\r\n");
  CAPTURE(said);
  {
    const auto begin = Clock::now();
    Visitor visitor(door.address);
    if (!said.empty()) {
      visitor.send(bytesOf(said));
    }
    CHECK(visitor.isLetGo());
    CHECK(Clock::now() - begin >= kShort - kTick);
  }
  CHECK(door.isAsBefore());
}

TEST_CASE("a guest that greets and then says nothing is let go", "[door_stranger]") {
  BesiegedDoor door(GENERATE(Medium::shm, Medium::tcp), impatient());
  {
    Visitor visitor(door.address);
    HandshakeBytes proof = proofFor(visitor, door);
    proof.pop_back();
    visitor.send(proof);
    CHECK(visitor.isLetGo());
  }
  CHECK(door.isAsBefore());
}

TEST_CASE(
    "a door's patience is for the whole handshake, however often a guest says a bit",
    "[door_stranger]") {
  BesiegedDoor door(GENERATE(Medium::shm, Medium::tcp), impatient());
  {
    Visitor visitor(door.address);
    const auto begin = Clock::now();
    Applicant applicant(door.key, door.medium, kDoorLane);
    const HandshakeBytes greeting = applicant.greet();
    char byte = 0;
    size_t sent = 0;
    // As slow as a second for the whole greeting.
    while (sent < greeting.size() && recv(visitor.socket(), &byte, 1, MSG_DONTWAIT) < 0 &&
           errno == EAGAIN) {
      visitor.send(ForeignBytes(greeting).subspan(sent++, 1));
      std::this_thread::sleep_for(milliseconds(20));
    }
    CHECK(sent < greeting.size());
    CHECK(Clock::now() - begin >= kShort - kTick);
  }
  CHECK(door.isAsBefore());
}

TEST_CASE("a guest that comes and goes leaves nothing behind", "[door_stranger]") {
  BesiegedDoor door(GENERATE(Medium::shm, Medium::tcp));
  for (int i = 0; i < 100; ++i) {
    Visitor visitor(door.address);
    if (i % 4 == 1) {
      visitor.send(bytesOf("TWIR"));
    } else if (i % 4 == 2) {
      Applicant applicant(door.key, door.medium, kDoorLane);
      visitor.send(applicant.greet()); // and does not read the challenge
    } else if (i % 4 == 3) {
      proofFor(visitor, door);
    }
    if (door.medium == Medium::tcp && i % 8 < 4) {
      visitor.reset();
    }
  }
  CHECK(door.isAsBefore());
}

TEST_CASE("random bytes are not understood, and not waited for", "[door_stranger]") {
  BesiegedDoor door(GENERATE(Medium::shm, Medium::tcp));
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    Visitor visitor(door.address);
    HandshakeBytes bytes(kGreetingSize + random() % 1000);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<unsigned char>(random()); });
    visitor.send(bytes);
    const HandshakeBytes challenge = visitor.receive(kChallengeSize);
    // The end may overtake the answer where more was sent than the door has read.
    CHECK((challenge.empty() || answerIn(challenge) == Answer::notUnderstood));
    CHECK(visitor.isLetGo());
  }
  CHECK(door.isAsBefore());
}

// ---- who is not of the group ----------------------------------------------------------------------

TEST_CASE(
    "a guest of another group, medium, version or lane is told so and let go", "[door_stranger]") {
  BesiegedDoor door(GENERATE(Medium::shm, Medium::tcp));
  const Medium other = door.medium == Medium::shm ? Medium::tcp : Medium::shm;
  const GroupKey otherGroup(kDoorGroup + 1, kDoorSecret);
  const auto greet = [](const GroupKey& key, Medium medium, uint8_t lane) {
    return Applicant(key, medium, lane).greet();
  };
  HandshakeBytes otherVersion = greet(door.key, door.medium, kDoorLane);
  otherVersion[4] = 77;
  const std::vector<std::pair<HandshakeBytes, Answer>> cases = {
      {greet(otherGroup, door.medium, kDoorLane), Answer::otherGroup},
      {greet(door.key, other, kDoorLane), Answer::otherMedium},
      {greet(door.key, door.medium, kDoorLane + 1), Answer::noSuchLane},
      {otherVersion, Answer::otherVersion},
      {HandshakeBytes(kGreetingSize), Answer::notUnderstood}};
  for (const auto& [greeting, answer] : cases) {
    Visitor visitor(door.address);
    visitor.send(greeting);
    const HandshakeBytes challenge = visitor.receive(kChallengeSize);
    REQUIRE(challenge.size() == kChallengeSize);
    CHECK(answerIn(challenge) == answer);
    CHECK(visitor.isLetGo());
  }
  CHECK(door.isAsBefore());
}

TEST_CASE("a guest with another secret is told so and let go, its memory too", "[door_stranger]") {
  BesiegedDoor door(GENERATE(Medium::shm, Medium::tcp));
  {
    const GroupKey otherKey(kDoorGroup, "another secret...");
    Visitor visitor(door.address);
    Applicant applicant(otherKey, door.medium, kDoorLane);
    visitor.send(applicant.greet());
    const MemoryFile memory = MemoryFile::create(kDoorMemory);
    visitor.send(
        applicant.answerChallenge(visitor.receive(kChallengeSize)).send,
        door.medium == Medium::shm ? memory.descriptor() : -1);
    const HandshakeBytes verdict = visitor.receive(kVerdictSize);
    CHECK(answerIn(verdict) == Answer::wrongProof);
    CHECK(std::count(verdict.begin() + 1, verdict.end(), 0) == kProofSize);
    CHECK(visitor.isLetGo());
  }
  CHECK(door.isAsBefore());
}

TEST_CASE("a recorded handshake opens no door", "[door_stranger]") {
  BesiegedDoor door(Medium::tcp);
  {
    Visitor honest(door.address);
    Applicant applicant(door.key, Medium::tcp, kDoorLane);
    const HandshakeBytes greeting = applicant.greet();
    honest.send(greeting);
    const HandshakeBytes proof = applicant.answerChallenge(honest.receive(kChallengeSize)).send;
    honest.send(proof);
    const Descriptor socket(door.take().socket);
    Visitor replay(door.address);
    replay.send(greeting);
    CHECK(answerIn(replay.receive(kChallengeSize)) == Answer::welcome);
    replay.send(proof);
    CHECK(answerIn(replay.receive(kVerdictSize)) == Answer::wrongProof);
    CHECK(replay.isLetGo());
  }
  CHECK(door.isAsBefore());
}

// ---- memory that is none --------------------------------------------------------------------------

TEST_CASE(
    "a proof with memory that cannot be used is refused", "[door_stranger]") {
  BesiegedDoor door(Medium::shm);
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  using Make = std::function<int()>;
  const std::vector<Make> memories = {
      [&] { return foreignMemory(kDoorMemory / 2, seals); },
      [&] { return foreignMemory(kDoorMemory * 2, seals); },
      [] { return foreignMemory(kDoorMemory, F_SEAL_GROW); },
      [] { return foreignMemory(kDoorMemory, F_SEAL_SHRINK); },
      [&] { return foreignMemory(kDoorMemory, seals | F_SEAL_WRITE); },
      [] { return open("/dev/null", O_RDWR | O_CLOEXEC); },
      [] { return open("/", O_RDONLY | O_CLOEXEC); }};
  for (const Make& make : memories) {
    Visitor visitor(door.address);
    const Descriptor memory(make());
    CHECK(door.enter(visitor, memory.get()) == Answer::badMemory);
    CHECK(visitor.isLetGo());
  }
  CHECK(door.isAsBefore());
}

TEST_CASE("a proof without memory is let go without a word, for a new try", "[door_stranger]") {
  BesiegedDoor door(Medium::shm);
  {
    Visitor visitor(door.address);
    Applicant applicant(door.key, Medium::shm, kDoorLane);
    visitor.send(applicant.greet());
    visitor.send(applicant.answerChallenge(visitor.receive(kChallengeSize)).send);
    CHECK(visitor.isLetGo());
  }
  CHECK(door.isAsBefore());
}

TEST_CASE("memory that comes with the greeting does not count", "[door_stranger]") {
  BesiegedDoor door(Medium::shm);
  {
    Visitor visitor(door.address);
    const MemoryFile memory = MemoryFile::create(kDoorMemory);
    Applicant applicant(door.key, Medium::shm, kDoorLane);
    visitor.send(applicant.greet(), memory.descriptor());
    visitor.send(applicant.answerChallenge(visitor.receive(kChallengeSize)).send);
    CHECK(visitor.isLetGo());
  }
  CHECK(door.isAsBefore());
}

TEST_CASE("of memory that comes in many pieces only the first counts", "[door_stranger]") {
  BesiegedDoor door(Medium::shm);
  {
    Visitor visitor(door.address);
    const MemoryFile good = MemoryFile::create(kDoorMemory);
    const MemoryFile bad = MemoryFile::create(2 * kDoorMemory);
    const HandshakeBytes proof = proofFor(visitor, door);
    for (size_t i = 0; i < proof.size(); ++i) {
      visitor.send(ForeignBytes(proof).subspan(i, 1), (i == 0 ? good : bad).descriptor());
    }
    CHECK(answerIn(visitor.receive(kVerdictSize)) == Answer::welcome);
    const Descriptor socket(door.take().socket);
  }
  CHECK(door.isAsBefore());
}

// ---- too many -------------------------------------------------------------------------------------

TEST_CASE("of too many guests the one that has stayed longest goes", "[door_stranger]") {
  BesiegedDoor door(
      GENERATE(Medium::shm, Medium::tcp),
      {.patience = milliseconds(10000), .mostGuests = 4, .shortestStay = milliseconds(0)});
  {
    std::deque<Visitor> strangers;
    for (int i = 0; i < 4; ++i) {
      strangers.emplace_back(door.address);
    }
    for (int i = 0; i < 20; ++i) {
      CAPTURE(i);
      strangers.emplace_back(door.address);
      CHECK(strangers.front().isLetGo());
      strangers.pop_front();
    }
    CHECK(door.letsHonestGuestIn());
  }
  CHECK(door.isAsBefore());
}

TEST_CASE("a guest may stay a while even if there are too many", "[door_stranger]") {
  constexpr milliseconds kStay{60};
  BesiegedDoor door(
      GENERATE(Medium::shm, Medium::tcp),
      {.patience = milliseconds(10000), .mostGuests = 2, .shortestStay = kStay});
  {
    const auto begin = Clock::now();
    std::deque<Visitor> strangers;
    for (int i = 0; i < 6; ++i) {
      strangers.emplace_back(door.address);
    }
    CHECK(strangers[0].isLetGo());
    CHECK(Clock::now() - begin >= kStay - kTick);
    CHECK(strangers[2].isLetGo()); // came in when the first had gone
    CHECK(Clock::now() - begin >= 2 * kStay - 2 * kTick);
    CHECK(door.letsHonestGuestIn());
  }
  CHECK(door.isAsBefore());
}

TEST_CASE("honest guests come in while strangers besiege a door", "[door_stranger]") {
  BesiegedDoor door(
      GENERATE(Medium::shm, Medium::tcp),
      {.patience = milliseconds(10000), .mostGuests = 16, .shortestStay = milliseconds(5)});
  {
    std::atomic<bool> over{false};
    std::vector<std::thread> siege;
    for (unsigned i = 0; i < 2; ++i) {
      siege.emplace_back([&, i] {
        std::mt19937 random(i);
        std::deque<Visitor> strangers;
        while (!over) {
          strangers.emplace_back(door.address);
          const HandshakeBytes bytes(random() % 100, 'T');
          if (!bytes.empty()) {
            strangers.back().send(bytes);
          }
          if (strangers.size() > 32) {
            strangers.front().isLetGo();
            strangers.pop_front();
          }
        }
      });
    }
    int letIn = 0;
    for (int i = 0; i < 20; ++i) {
      bool in = false;
      for (int attempt = 0; attempt < 100 && !in; ++attempt) { // as a dialler does
        in = door.letsHonestGuestIn();
      }
      letIn += in ? 1 : 0;
    }
    over = true;
    for (std::thread& thread : siege) {
      thread.join();
    }
    CHECK(letIn == 20);
  }
  CHECK(door.isAsBefore());
}

// ---- the log --------------------------------------------------------------------------------------

TEST_CASE(
    "a stranger is told of in the log, with where it comes from and what is wrong", "[door_log]") {
  if (!logEnabled(LogLevel::warning)) {
    WARN("TORCHWIRE_LOG_LEVEL hides what this is about");
    return;
  }
  DoorUnderTest door(GENERATE(Medium::shm, Medium::tcp), impatient());
  const bool tcp = door.medium == Medium::tcp;
  std::string from =
      "process " + std::to_string(getpid()) + " of user " + std::to_string(geteuid());
  const std::string log = writtenBy([&] {
    Visitor visitor(door.address);
    if (tcp) {
      from = SocketAddress::ofSocket(visitor.socket()).describe();
    }
    visitor.isLetGo();
    onLoop(*door.loop, [] {});
  });
  const std::string where = tcp ? "wire_tcp (" + door.address.describe() + ")"
                                : "wire_shm (@" + door.address.describe() + ")";
  CHECK(
      log ==
      "torchwire warning: " + where + " refused a connection from " + from +
          ": it did not finish the handshake in time\n");
}
