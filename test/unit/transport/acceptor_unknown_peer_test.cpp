// What an acceptor makes of peers that do not belong there.
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

#include "backend/base/log.h"
#include "test/unit/support/acceptor_under_test.h"
#include "test/unit/support/open_files.h"
#include "test/unit/support/written_by.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr milliseconds kShort{50};
constexpr milliseconds kTick{1}; // libuv counts in whole milliseconds

AcceptorLimits impatient() {
  return {.patience = kShort, .maxPending = 256, .minAge = milliseconds(0)};
}

HandshakeBytes bytesOf(const std::string& text) {
  return {text.begin(), text.end()};
}

/// An acceptor that is to be as it was when all unknown peers have gone: no file more, and honest peers come
/// in.
class BesiegedAcceptor : public AcceptorUnderTest {
 public:
  explicit BesiegedAcceptor(Medium medium, AcceptorLimits limits = AcceptorLimits())
      : AcceptorUnderTest(medium, limits), before_(openFiles()) {}

  /// Waits until no file more is open than at the beginning: closing takes the loop a moment.
  bool isAsBefore() {
    const auto begin = Clock::now();
    while (openFiles() != before_ && Clock::now() - begin < Notifier::kPatience) {
      onLoop(*loop, [] {});
    }
    return openFiles() == before_ && admitted() == 0 && admitsHonestPeer();
  }

 private:
  const ptrdiff_t before_;
};

// A greeting of the acceptor's own group, and what the initiator makes of the challenge.
HandshakeBytes proofFor(Visitor& visitor, const AcceptorUnderTest& acceptor) {
  HandshakeInitiator initiator(acceptor.key, acceptor.medium, kAcceptorLane, acceptor.terms());
  visitor.send(initiator.greet());
  return initiator.answerChallenge(visitor.receive(kChallengeSize)).send;
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

TEST_CASE("a peer that says too little in time is rejected", "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(GENERATE(Medium::shm, Medium::tcp), impatient());
  const std::string said = GENERATE("", "T", "TWIR", "GET / HTTP/1.1\r\n\r\n");
  CAPTURE(said);
  {
    const auto begin = Clock::now();
    Visitor visitor(acceptor.address);
    if (!said.empty()) {
      visitor.send(bytesOf(said));
    }
    CHECK(visitor.isDisconnected());
    CHECK(Clock::now() - begin >= kShort - kTick);
  }
  CHECK(acceptor.isAsBefore());
}

TEST_CASE("a peer that greets and then says nothing is rejected", "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(GENERATE(Medium::shm, Medium::tcp), impatient());
  {
    Visitor visitor(acceptor.address);
    HandshakeBytes proof = proofFor(visitor, acceptor);
    proof.pop_back();
    visitor.send(proof);
    CHECK(visitor.isDisconnected());
  }
  CHECK(acceptor.isAsBefore());
}

TEST_CASE(
    "an acceptor's patience is for the whole handshake, however often a peer says a bit",
    "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(GENERATE(Medium::shm, Medium::tcp), impatient());
  {
    Visitor visitor(acceptor.address);
    const auto begin = Clock::now();
    HandshakeInitiator initiator(acceptor.key, acceptor.medium, kAcceptorLane, acceptor.terms());
    const HandshakeBytes greeting = initiator.greet();
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
  CHECK(acceptor.isAsBefore());
}

TEST_CASE("a peer that comes and goes leaves nothing behind", "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(GENERATE(Medium::shm, Medium::tcp));
  for (int i = 0; i < 100; ++i) {
    Visitor visitor(acceptor.address);
    if (i % 4 == 1) {
      visitor.send(bytesOf("TWIR"));
    } else if (i % 4 == 2) {
      HandshakeInitiator initiator(acceptor.key, acceptor.medium, kAcceptorLane, acceptor.terms());
      visitor.send(initiator.greet()); // and does not read the challenge
    } else if (i % 4 == 3) {
      proofFor(visitor, acceptor);
    }
    if (acceptor.medium == Medium::tcp && i % 8 < 4) {
      visitor.reset();
    }
  }
  CHECK(acceptor.isAsBefore());
}

TEST_CASE("random bytes are not understood, and not waited for", "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(GENERATE(Medium::shm, Medium::tcp));
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    Visitor visitor(acceptor.address);
    HandshakeBytes bytes(kGreetingSize + random() % 1000);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<unsigned char>(random()); });
    visitor.send(bytes);
    const HandshakeBytes challenge = visitor.receive(kChallengeSize);
    // The end may overtake the answer where more was sent than the acceptor has read.
    CHECK((challenge.empty() || answerIn(challenge) == Answer::notUnderstood));
    CHECK(visitor.isDisconnected());
  }
  CHECK(acceptor.isAsBefore());
}

// ---- who is not of the group ----------------------------------------------------------------------

TEST_CASE(
    "a peer of another group, medium, version or lane is told so and rejected",
    "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(GENERATE(Medium::shm, Medium::tcp));
  const Medium other = acceptor.medium == Medium::shm ? Medium::tcp : Medium::shm;
  const GroupKey otherGroup(kAcceptorGroup + 1, kAcceptorSecret);
  const auto greet = [](const GroupKey& key, Medium medium, uint8_t lane) {
    return HandshakeInitiator(key, medium, lane).greet();
  };
  HandshakeBytes otherVersion = greet(acceptor.key, acceptor.medium, kAcceptorLane);
  otherVersion[4] = 77;
  HandshakeBytes shorter(
      otherVersion.begin(), otherVersion.begin() + 48); // as one is that waits then
  const std::vector<std::pair<HandshakeBytes, Answer>> cases = {
      {greet(otherGroup, acceptor.medium, kAcceptorLane), Answer::otherGroup},
      {greet(acceptor.key, other, kAcceptorLane), Answer::otherMedium},
      {greet(acceptor.key, acceptor.medium, kAcceptorLane + 1), Answer::noSuchLane},
      {otherVersion, Answer::otherVersion},
      {shorter, Answer::otherVersion},
      {HandshakeBytes(kGreetingSize), Answer::notUnderstood}};
  for (const auto& [greeting, answer] : cases) {
    Visitor visitor(acceptor.address);
    visitor.send(greeting);
    const HandshakeBytes challenge = visitor.receive(kChallengeSize);
    REQUIRE(challenge.size() == kChallengeSize);
    CHECK(answerIn(challenge) == answer);
    CHECK(visitor.isDisconnected());
  }
  CHECK(acceptor.isAsBefore());
}

TEST_CASE(
    "a peer with another secret is told so and rejected, its memory too",
    "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(GENERATE(Medium::shm, Medium::tcp));
  {
    const GroupKey otherKey(kAcceptorGroup, "another secret...");
    Visitor visitor(acceptor.address);
    HandshakeInitiator initiator(otherKey, acceptor.medium, kAcceptorLane, acceptor.terms());
    visitor.send(initiator.greet());
    const MemoryFile memory = MemoryFile::create(kAcceptorMemory);
    visitor.send(
        initiator.answerChallenge(visitor.receive(kChallengeSize)).send,
        acceptor.medium == Medium::shm ? memory.descriptor() : -1);
    const HandshakeBytes authResult = visitor.receive(kAuthResultSize);
    CHECK(answerIn(authResult) == Answer::wrongProof);
    CHECK(std::count(authResult.begin() + 1, authResult.end(), 0) == kProofSize);
    CHECK(visitor.isDisconnected());
  }
  CHECK(acceptor.isAsBefore());
}

TEST_CASE("a recorded handshake lets nobody in", "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(Medium::tcp);
  {
    Visitor honest(acceptor.address);
    HandshakeInitiator initiator(acceptor.key, Medium::tcp, kAcceptorLane, acceptor.terms());
    const HandshakeBytes greeting = initiator.greet();
    honest.send(greeting);
    const HandshakeBytes proof = initiator.answerChallenge(honest.receive(kChallengeSize)).send;
    honest.send(proof);
    const Descriptor socket(acceptor.take().socket);
    Visitor replay(acceptor.address);
    replay.send(greeting);
    CHECK(answerIn(replay.receive(kChallengeSize)) == Answer::welcome);
    replay.send(proof);
    CHECK(answerIn(replay.receive(kAuthResultSize)) == Answer::wrongProof);
    CHECK(replay.isDisconnected());
  }
  CHECK(acceptor.isAsBefore());
}

// ---- memory that is none --------------------------------------------------------------------------

TEST_CASE("a proof with memory that cannot be used is refused", "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(Medium::shm);
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  using Make = std::function<int()>;
  const std::vector<Make> memories = {
      [&] { return foreignMemory(kAcceptorMemory / 2, seals); },
      [&] { return foreignMemory(kAcceptorMemory * 2, seals); },
      [] { return foreignMemory(kAcceptorMemory, F_SEAL_GROW); },
      [] { return foreignMemory(kAcceptorMemory, F_SEAL_SHRINK); },
      [&] { return foreignMemory(kAcceptorMemory, seals | F_SEAL_WRITE); },
      [] { return open("/dev/null", O_RDWR | O_CLOEXEC); },
      [] { return open("/", O_RDONLY | O_CLOEXEC); }};
  for (const Make& make : memories) {
    Visitor visitor(acceptor.address);
    const Descriptor memory(make());
    CHECK(acceptor.enter(visitor, memory.get()) == Answer::badMemory);
    CHECK(visitor.isDisconnected());
  }
  CHECK(acceptor.isAsBefore());
}

TEST_CASE(
    "a proof without memory is rejected without a word, for a new try", "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(Medium::shm);
  {
    Visitor visitor(acceptor.address);
    HandshakeInitiator initiator(acceptor.key, Medium::shm, kAcceptorLane, acceptor.terms());
    visitor.send(initiator.greet());
    visitor.send(initiator.answerChallenge(visitor.receive(kChallengeSize)).send);
    CHECK(visitor.isDisconnected());
  }
  CHECK(acceptor.isAsBefore());
}

TEST_CASE("memory that comes with the greeting does not count", "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(Medium::shm);
  {
    Visitor visitor(acceptor.address);
    const MemoryFile memory = MemoryFile::create(kAcceptorMemory);
    HandshakeInitiator initiator(acceptor.key, Medium::shm, kAcceptorLane, acceptor.terms());
    visitor.send(initiator.greet(), memory.descriptor());
    visitor.send(initiator.answerChallenge(visitor.receive(kChallengeSize)).send);
    CHECK(visitor.isDisconnected());
  }
  CHECK(acceptor.isAsBefore());
}

TEST_CASE("of memory that comes in many pieces only the first counts", "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(Medium::shm);
  {
    Visitor visitor(acceptor.address);
    const MemoryFile good = MemoryFile::create(kAcceptorMemory);
    const MemoryFile bad = MemoryFile::create(2 * kAcceptorMemory);
    const HandshakeBytes proof = proofFor(visitor, acceptor);
    for (size_t i = 0; i < proof.size(); ++i) {
      visitor.send(ForeignBytes(proof).subspan(i, 1), (i == 0 ? good : bad).descriptor());
    }
    CHECK(answerIn(visitor.receive(kAuthResultSize)) == Answer::welcome);
    const Descriptor socket(acceptor.take().socket);
  }
  CHECK(acceptor.isAsBefore());
}

// ---- too many -------------------------------------------------------------------------------------

TEST_CASE("of too many pending handshakes the oldest is rejected", "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(
      GENERATE(Medium::shm, Medium::tcp),
      {.patience = milliseconds(10000), .maxPending = 4, .minAge = milliseconds(0)});
  {
    std::deque<Visitor> unknown;
    for (int i = 0; i < 4; ++i) {
      unknown.emplace_back(acceptor.address);
    }
    for (int i = 0; i < 20; ++i) {
      CAPTURE(i);
      unknown.emplace_back(acceptor.address);
      CHECK(unknown.front().isDisconnected());
      unknown.pop_front();
    }
    CHECK(acceptor.admitsHonestPeer());
  }
  CHECK(acceptor.isAsBefore());
}

TEST_CASE(
    "a pending handshake may stay a while even if there are too many", "[acceptor_unknown_peer]") {
  constexpr milliseconds kStay{60};
  BesiegedAcceptor acceptor(
      GENERATE(Medium::shm, Medium::tcp),
      {.patience = milliseconds(10000), .maxPending = 2, .minAge = kStay});
  {
    const auto begin = Clock::now();
    std::deque<Visitor> unknown;
    for (int i = 0; i < 6; ++i) {
      unknown.emplace_back(acceptor.address);
    }
    CHECK(unknown[0].isDisconnected());
    CHECK(Clock::now() - begin >= kStay - kTick);
    CHECK(unknown[2].isDisconnected()); // came in when the first had gone
    CHECK(Clock::now() - begin >= 2 * kStay - 2 * kTick);
    CHECK(acceptor.admitsHonestPeer());
  }
  CHECK(acceptor.isAsBefore());
}

TEST_CASE(
    "honest peers come in while unknown ones besiege an acceptor", "[acceptor_unknown_peer]") {
  BesiegedAcceptor acceptor(
      GENERATE(Medium::shm, Medium::tcp),
      {.patience = milliseconds(10000), .maxPending = 16, .minAge = milliseconds(5)});
  {
    std::atomic<bool> over{false};
    std::vector<std::thread> siege;
    for (unsigned i = 0; i < 2; ++i) {
      siege.emplace_back([&, i] {
        std::mt19937 random(i);
        std::deque<Visitor> unknown;
        while (!over) {
          unknown.emplace_back(acceptor.address);
          const HandshakeBytes bytes(random() % 100, 'T');
          if (!bytes.empty()) {
            unknown.back().send(bytes);
          }
          if (unknown.size() > 32) {
            unknown.front().isDisconnected();
            unknown.pop_front();
          }
        }
      });
    }
    int letIn = 0;
    for (int i = 0; i < 20; ++i) {
      bool in = false;
      for (int attempt = 0; attempt < 100 && !in; ++attempt) { // as a dialer does
        in = acceptor.admitsHonestPeer();
      }
      letIn += in ? 1 : 0;
    }
    over = true;
    for (std::thread& thread : siege) {
      thread.join();
    }
    CHECK(letIn == 20);
  }
  CHECK(acceptor.isAsBefore());
}

// ---- the log --------------------------------------------------------------------------------------

TEST_CASE(
    "an unknown peer is told of in the log, with where it comes from and what is wrong",
    "[acceptor_log]") {
  if (!logEnabled(LogLevel::warning)) {
    WARN("TORCHWIRE_LOG_LEVEL hides what this is about");
    return;
  }
  AcceptorUnderTest acceptor(GENERATE(Medium::shm, Medium::tcp), impatient());
  const bool tcp = acceptor.medium == Medium::tcp;
  std::string from =
      "process " + std::to_string(getpid()) + " of user " + std::to_string(geteuid());
  const std::string log = writtenBy([&] {
    Visitor visitor(acceptor.address);
    if (tcp) {
      from = SocketAddress::ofSocket(visitor.socket()).describe();
    }
    visitor.isDisconnected();
    onLoop(*acceptor.loop, [] {});
  });
  const std::string where = tcp ? "wire_tcp (" + acceptor.address.describe() + ")"
                                : "wire_shm (@" + acceptor.address.describe() + ")";
  CHECK(
      log ==
      "torchwire warning: " + where + " refused a connection from " + from +
          ": it did not finish the handshake in time\n");
}
