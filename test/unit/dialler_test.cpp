#include "backend/transport/dialler.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "test/unit/callback_ledger.h"
#include "test/unit/door_under_test.h"
#include "test/unit/open_files.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr milliseconds kTick{1}; // libuv counts in whole milliseconds
constexpr DialLimits kPatient{milliseconds(10000), milliseconds(10000)};
constexpr DialLimits kImpatient{milliseconds(80), milliseconds(30)};

/// A dialler on a loop of its own, and what became of it.
class Dial {
 public:
  Dial(
      Medium medium, SocketAddress address, const GroupKey& key, DialLimits limits = kPatient,
      uint8_t lane = kDoorLane)
      : key_(key), note_(ledger_.note("the dial to " + address.describe())) {
    const size_t memorySize = medium == Medium::shm ? kDoorMemory : 0;
    onLoop(*loop_, [&] {
      dialler_ = std::make_unique<Dialler>(
          *loop_, key_, Dialler::Target{address, medium, lane, memorySize},
          [this](const Error& error, Dialler::Reached reached) { done(error, std::move(reached)); },
          limits);
      dialler_->start();
    });
  }
  ~Dial() {
    destroy();
  }
  Dial(const Dial&) = delete;
  Dial& operator=(const Dial&) = delete;

  /// Before its end. Its callback is not expected any more.
  void destroy() {
    const bool early =
        onLoop(*loop_, [this] { return std::exchange(dialler_, nullptr) != nullptr; });
    if (early && !note_.called()) {
      ledger_.forgive();
    }
  }
  bool isOver() const {
    return note_.called();
  }
  Error error() {
    if (!ledger_.waitForAll()) {
      return Error(ErrorCode::timeout, "the dialler does not come to an end");
    }
    return note_.error();
  }

  // What was reached, after error().
  Descriptor socket;
  std::unique_ptr<MemoryFile> memory;

 private:
  void done(const Error& error, Dialler::Reached reached) {
    dialler_.reset();
    socket = Descriptor(reached.socket);
    if (reached.memory) {
      memory = std::make_unique<MemoryFile>(std::move(*reached.memory));
    }
    note_.add(error);
  }

  const GroupKey key_;
  CallbackLedger ledger_;
  CallbackNote& note_;
  const std::shared_ptr<Loop> loop_ = Loop::start("dialler");
  std::unique_ptr<Dialler> dialler_;
};

const GroupKey kKey(kDoorGroup, kDoorSecret);

/// A socket that listens, and the test in the place of a door.
struct FakeDoor {
  explicit FakeDoor(Medium theMedium) : medium(theMedium), listening(listenSomewhere(theMedium)) {}

  SocketAddress address() const {
    return SocketAddress::ofSocket(listening.get());
  }
  /// The next who knocks.
  Visitor accept() const {
    pollfd waiting{listening.get(), POLLIN, 0};
    poll(&waiting, 1, 10000);
    SocketAddress from;
    const int socket = from.accept(listening.get());
    fcntl(socket, F_SETFL, 0); // it may block
    return Visitor(Descriptor(socket));
  }

  const Medium medium;
  Descriptor listening;
};

} // namespace

TEST_CASE("a dialler reaches a door, and both have the two ends of one connection", "[dialler]") {
  DoorUnderTest door(GENERATE(Medium::shm, Medium::tcp));
  Dial dial(door.medium, door.address, kKey);
  REQUIRE_FALSE(dial.error());
  Door::Admitted guest = door.take();
  const Descriptor accepted(guest.socket);
  CHECK(guest.lane == kDoorLane);
  CHECK(send(dial.socket.get(), "there", 5, MSG_NOSIGNAL) == 5);
  char text[6] = "";
  CHECK(recv(accepted.get(), text, 5, 0) == 5);
  CHECK(std::string(text) == "there");
  CHECK(send(accepted.get(), "back!", 5, MSG_NOSIGNAL) == 5);
  CHECK(recv(dial.socket.get(), text, 5, 0) == 5);
  CHECK(std::string(text) == "back!");
  REQUIRE((dial.memory != nullptr) == (door.medium == Medium::shm));
  if (dial.memory) {
    dial.memory->data()[99] = 'x';
    CHECK(guest.memory->data()[99] == 'x');
    CHECK(dial.memory->descriptor() == -1); // nobody needs it any more
  }
}

TEST_CASE("many diallers reach a door at once", "[dialler]") {
  DoorUnderTest door(GENERATE(Medium::shm, Medium::tcp));
  std::vector<std::unique_ptr<Dial>> dials;
  for (int i = 0; i < 60; ++i) {
    dials.push_back(std::make_unique<Dial>(door.medium, door.address, kKey));
  }
  int reached = 0;
  for (const auto& dial : dials) {
    reached += dial->error() ? 0 : 1;
  }
  CHECK(reached == 60);
}

TEST_CASE("a connection that was made and undone leaves no file behind", "[dialler]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  { const DoorUnderTest warmUp(medium); }
  const auto before = openFiles();
  {
    DoorUnderTest door(medium);
    Dial dial(medium, door.address, kKey);
    CHECK_FALSE(dial.error());
    Dial refused(medium, door.address, GroupKey(kDoorGroup, "another secret..."));
    CHECK(refused.error());
  }
  CHECK(openFiles() == before);
}

// ---- nobody there, or not yet ---------------------------------------------------------------------

TEST_CASE("where nobody listens a dialler says so soon, with the address", "[dialler]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  const Descriptor bound = bindSomewhere(medium);
  const SocketAddress address = SocketAddress::ofSocket(bound.get());
  const auto begin = Clock::now();
  Dial dial(medium, address, kKey, {milliseconds(10000), milliseconds(50)});
  const Error error = dial.error();
  CHECK(Clock::now() - begin >= milliseconds(50) - kTick);
  CHECK(Clock::now() - begin < milliseconds(5000));
  CHECK(error.code() == ErrorCode::unreachable);
  CHECK_THAT(
      error.message(),
      Catch::StartsWith("cannot connect to " + address.describe() + " over wire_"));
  CHECK_THAT(error.message(), Catch::EndsWith(": Connection refused"));
}

TEST_CASE("a dialler's patience ends, also where it tries again all the time", "[dialler]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  const Descriptor bound = bindSomewhere(medium);
  const auto begin = Clock::now();
  Dial dial(
      medium, SocketAddress::ofSocket(bound.get()), kKey, {milliseconds(60), milliseconds(10000)});
  const Error error = dial.error();
  CHECK(Clock::now() - begin >= milliseconds(60) - kTick);
  CHECK(error.code() == ErrorCode::unreachable);
  CHECK_THAT(error.message(), Catch::EndsWith(": Connection refused"));
}

TEST_CASE("a dialler reaches a door that is opened after it began to dial", "[dialler]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  Descriptor bound = bindSomewhere(medium);
  Dial dial(medium, SocketAddress::ofSocket(bound.get()), kKey);
  CHECK_FALSE(dial.isOver());
  REQUIRE(listen(bound.get(), 8) == 0);
  DoorUnderTest door(medium, DoorLimits(), std::move(bound));
  CHECK_FALSE(dial.error());
}

TEST_CASE("a dialler waits while too many others do", "[dialler]") {
  Descriptor listening = listenSomewhere(Medium::shm, 0); // room for one
  const SocketAddress address = SocketAddress::ofSocket(listening.get());
  Visitor first(address);
  Dial dial(Medium::shm, address, kKey);
  CHECK_FALSE(dial.isOver());
  DoorUnderTest door(Medium::shm, DoorLimits(), std::move(listening));
  CHECK_FALSE(dial.error());
}

TEST_CASE("a connection that is closed during the handshake is tried again", "[dialler]") {
  FakeDoor fake(GENERATE(Medium::shm, Medium::tcp));
  const SocketAddress address = fake.address();
  Dial dial(fake.medium, address, kKey);
  fake.accept().leave();
  {
    Visitor dialling = fake.accept();
    CHECK(dialling.receive(kGreetingSize).size() == kGreetingSize);
  }
  {
    Porter porter(kKey, fake.medium);
    Visitor dialling = fake.accept();
    const HandshakeBytes greeting = dialling.receive(kGreetingSize);
    dialling.send(porter.challenge(greeting, [](uint8_t) { return true; }).send);
    CHECK(dialling.receive(kProofSize).size() == kProofSize);
  }
  DoorUnderTest door(fake.medium, DoorLimits(), std::move(fake.listening));
  CHECK_FALSE(dial.error());
}

TEST_CASE("a peer that always closes during the handshake is told of in the end", "[dialler]") {
  DoorUnderTest door(
      GENERATE(Medium::shm, Medium::tcp),
      {.patience = milliseconds(0), .mostGuests = 256, .shortestStay = milliseconds(0)});
  Dial dial(door.medium, door.address, kKey, kImpatient);
  const Error error = dial.error();
  if (error) { // a quick handshake may succeed
    CHECK(error.code() == ErrorCode::unreachable);
    CHECK_THAT(error.message(), Catch::StartsWith("cannot connect to " + door.address.describe()));
  }
}

TEST_CASE("a peer that says nothing is waited for no longer than the patience", "[dialler]") {
  const FakeDoor fake(GENERATE(Medium::shm, Medium::tcp));
  const bool accepts = GENERATE(true, false);
  const auto begin = Clock::now();
  Dial dial(fake.medium, fake.address(), kKey, kImpatient);
  std::unique_ptr<Visitor> dialling;
  if (accepts) {
    dialling = std::make_unique<Visitor>(fake.accept());
  }
  const Error error = dial.error();
  CHECK(Clock::now() - begin >= kImpatient.patience - kTick);
  CHECK(error.code() == ErrorCode::unreachable);
  CHECK_THAT(error.message(), Catch::EndsWith(": no answer"));
}

TEST_CASE("an address that cannot be dialled is an error", "[dialler]") {
  // TCP does not broadcast.
  Dial dial(Medium::tcp, SocketAddress::tcp("255.255.255.255:1"), kKey, kImpatient);
  CHECK(dial.error().code() == ErrorCode::unreachable);
}

// ---- refused --------------------------------------------------------------------------------------

TEST_CASE("a dialler that is refused says why, and does not try again", "[dialler]") {
  DoorUnderTest door(GENERATE(Medium::shm, Medium::tcp));
  const auto objection = [&](const GroupKey& key, uint8_t lane) {
    Dial dial(door.medium, door.address, key, kPatient, lane);
    const Error error = dial.error();
    CHECK(error.code() == ErrorCode::refused);
    CHECK_THAT(error.message(), Catch::StartsWith("refused by " + door.address.describe()));
    return error.message();
  };
  CHECK_THAT(
      objection(GroupKey(kDoorGroup, "another secret..."), kDoorLane),
      Catch::EndsWith(describe(Answer::wrongProof)));
  CHECK_THAT(
      objection(GroupKey(kDoorGroup + 1, kDoorSecret), kDoorLane),
      Catch::EndsWith(describe(Answer::otherGroup)));
  CHECK_THAT(objection(kKey, kDoorLane + 1), Catch::EndsWith(describe(Answer::noSuchLane)));
  CHECK(door.admitted() == 0);
}

TEST_CASE("a dialler talks to nobody who does not prove to be of the group", "[dialler]") {
  const FakeDoor fake(GENERATE(Medium::shm, Medium::tcp));
  const GroupKey otherKey(kDoorGroup, "another secret...");
  Porter impostor(otherKey, fake.medium);
  Dial dial(fake.medium, fake.address(), kKey);
  Visitor dialling = fake.accept();
  const HandshakeBytes greeting = dialling.receive(kGreetingSize);
  dialling.send(impostor.challenge(greeting, [](uint8_t) { return true; }).send);
  impostor.check(dialling.receive(kProofSize));
  dialling.send(impostor.verdict(Answer::welcome));
  const Error error = dial.error();
  CHECK(error.code() == ErrorCode::refused);
  CHECK_THAT(error.message(), Catch::EndsWith(describe(Answer::wrongProof)));
  CHECK(dial.socket.get() == -1);
  CHECK(dialling.isLetGo());
}

TEST_CASE("a dialler that finds something else says that it is not torchwire", "[dialler]") {
  const FakeDoor fake(GENERATE(Medium::shm, Medium::tcp));
  Dial dial(fake.medium, fake.address(), kKey);
  Visitor dialling = fake.accept();
  const std::string banner = "220 mail.example.com ESMTP, how may we help you?\r\n";
  dialling.send(HandshakeBytes(banner.begin(), banner.end()));
  const Error error = dial.error();
  CHECK(error.code() == ErrorCode::refused);
  CHECK_THAT(error.message(), Catch::EndsWith(describe(Answer::notUnderstood)));
}

// ---- given up -------------------------------------------------------------------------------------

TEST_CASE("a dialler may be destroyed at any stage", "[dialler]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  { const DoorUnderTest warmUp(medium); }
  const auto before = openFiles();
  SECTION("between two attempts") {
    const Descriptor bound = bindSomewhere(medium);
    Dial dial(medium, SocketAddress::ofSocket(bound.get()), kKey);
    dial.destroy();
    CHECK_FALSE(dial.isOver());
  }
  SECTION("while it connects, or has just connected") {
    const Descriptor listening = listenSomewhere(medium, 0);
    std::vector<std::unique_ptr<Dial>> dials;
    for (int i = 0; i < 5; ++i) {
      dials.push_back(
          std::make_unique<Dial>(medium, SocketAddress::ofSocket(listening.get()), kKey));
    }
    for (const auto& dial : dials) {
      dial->destroy();
      CHECK_FALSE(dial->isOver());
    }
  }
  SECTION("while it waits for a challenge") {
    const FakeDoor fake(medium);
    Dial dial(medium, fake.address(), kKey);
    Visitor dialling = fake.accept();
    CHECK(dialling.receive(kGreetingSize).size() == kGreetingSize);
    dial.destroy();
    CHECK(dialling.isLetGo());
  }
  SECTION("while it waits for a verdict") {
    const FakeDoor fake(medium);
    Dial dial(medium, fake.address(), kKey);
    Visitor dialling = fake.accept();
    Porter porter(kKey, medium);
    const HandshakeBytes greeting = dialling.receive(kGreetingSize);
    dialling.send(porter.challenge(greeting, [](uint8_t) { return true; }).send);
    CHECK(porter.check(dialling.receive(kProofSize)));
    dial.destroy();
    CHECK(dialling.isLetGo());
  }
  CHECK(openFiles() == before);
}

TEST_CASE("a dialler that is kept after its end does nothing more", "[dialler]") {
  const bool refused = GENERATE(true, false);
  const FakeDoor fake(Medium::tcp);
  CallbackLedger ledger;
  CallbackNote& note = ledger.note("the dial");
  const auto loop = Loop::start("dialler");
  std::unique_ptr<Dialler> dialler;
  onLoop(*loop, [&] {
    dialler = std::make_unique<Dialler>(
        *loop, kKey, Dialler::Target{fake.address(), Medium::tcp, kDoorLane, 0},
        [&](const Error& error, Dialler::Reached) { note.add(error); },
        refused ? kPatient : kImpatient);
    dialler->start();
  });
  Visitor dialling = fake.accept();
  dialling.receive(kGreetingSize);
  if (refused) {
    dialling.send(HandshakeBytes(kChallengeSize, 'x'));
  }
  REQUIRE(ledger.waitForAll());
  CHECK(note.error());
  dialling.send(HandshakeBytes(2 * kChallengeSize, 'x'));
  dialling.leave();
  // Long enough for another attempt: there is nothing else to wait for, as nothing is to happen.
  pollfd nobody{fake.listening.get(), POLLIN, 0};
  CHECK(poll(&nobody, 1, 100) == 0);
  onLoop(*loop, [&] { dialler.reset(); });
}
