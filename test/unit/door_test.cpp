#include "backend/transport/door.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <list>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "test/unit/door_under_test.h"
#include "test/unit/open_files.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

std::optional<MemoryFile> memoryFor(const DoorUnderTest& door) {
  std::optional<MemoryFile> memory;
  if (door.memorySize() != 0) {
    memory.emplace(MemoryFile::create(door.memorySize()));
  }
  return memory;
}

int descriptorOf(const std::optional<MemoryFile>& memory) {
  return memory ? memory->descriptor() : -1;
}

} // namespace

TEST_CASE("whoever knows the secret is let in, with the lane and the memory asked for", "[door]") {
  DoorUnderTest door(GENERATE(Medium::shm, Medium::tcp));
  Visitor visitor(door.address);
  const auto memory = memoryFor(door);
  CHECK(door.enter(visitor, descriptorOf(memory)) == Answer::welcome);
  Door::Admitted guest = door.take();
  const Descriptor socket(guest.socket);
  CHECK(guest.lane == kDoorLane);
  CHECK(guest.memory.has_value() == memory.has_value());
  if (memory && guest.memory) {
    memory->data()[17] = 'x';
    CHECK(guest.memory->data()[17] == 'x');
    CHECK(guest.memory->descriptor() == -1);
  }
}

TEST_CASE("the socket of a guest that was let in is its own, and does not block", "[door]") {
  DoorUnderTest door(GENERATE(Medium::shm, Medium::tcp));
  Visitor visitor(door.address);
  const auto memory = memoryFor(door);
  REQUIRE(door.enter(visitor, descriptorOf(memory)) == Answer::welcome);
  const Descriptor socket(door.take().socket);
  char byte = 0;
  CHECK(recv(socket.get(), &byte, 1, 0) == -1);
  CHECK(errno == EAGAIN);
  CHECK((fcntl(socket.get(), F_GETFD) & FD_CLOEXEC) != 0);
  door.close(); // it is not the door's any more
  CHECK(send(socket.get(), "x", 1, MSG_NOSIGNAL) == 1);
  CHECK(visitor.receive(1) == HandshakeBytes{'x'});
}

TEST_CASE(
    "what a guest sends right behind its proof is left for whoever takes the socket", "[door]") {
  DoorUnderTest door(Medium::tcp);
  Visitor visitor(door.address);
  Applicant applicant(door.key, Medium::tcp, kDoorLane);
  visitor.send(applicant.greet());
  HandshakeBytes proof = applicant.answerChallenge(visitor.receive(kChallengeSize)).send;
  proof.push_back('x');
  visitor.send(proof);
  CHECK_FALSE(applicant.judge(visitor.receive(kVerdictSize)).has_value());
  const Descriptor socket(door.take().socket);
  char byte = 0;
  CHECK(recv(socket.get(), &byte, 1, 0) == 1);
  CHECK(byte == 'x');
}

TEST_CASE("a handshake may come byte by byte", "[door]") {
  DoorUnderTest door(GENERATE(Medium::shm, Medium::tcp));
  Visitor visitor(door.address);
  const auto memory = memoryFor(door);
  Applicant applicant(door.key, door.medium, kDoorLane);
  const auto sendSlowly = [&](const HandshakeBytes& message, int descriptor) {
    for (size_t i = 0; i < message.size(); ++i) {
      visitor.send(ForeignBytes(message).subspan(i, 1), i == message.size() / 2 ? descriptor : -1);
      std::this_thread::yield();
    }
  };
  sendSlowly(applicant.greet(), -1);
  sendSlowly(applicant.answerChallenge(visitor.receive(kChallengeSize)).send, descriptorOf(memory));
  CHECK_FALSE(applicant.judge(visitor.receive(kVerdictSize)).has_value());
  const Descriptor socket(door.take().socket);
}

TEST_CASE("many guests at a time are all let in, whatever the order of their words", "[door]") {
  constexpr size_t kGuests = 150; // more than are accepted in one go
  DoorUnderTest door(GENERATE(Medium::shm, Medium::tcp));
  const auto memory = memoryFor(door);
  std::list<Visitor> visitors;
  std::list<Applicant> applicants;
  for (size_t i = 0; i < kGuests; ++i) {
    visitors.emplace_back(door.address);
    applicants.emplace_back(door.key, door.medium, kDoorLane);
    visitors.back().send(applicants.back().greet());
  }
  auto applicant = applicants.rbegin();
  for (auto visitor = visitors.rbegin(); visitor != visitors.rend(); ++visitor, ++applicant) {
    visitor->send(
        applicant->answerChallenge(visitor->receive(kChallengeSize)).send, descriptorOf(memory));
  }
  size_t welcome = 0;
  applicant = applicants.rbegin();
  for (auto visitor = visitors.rbegin(); visitor != visitors.rend(); ++visitor, ++applicant) {
    welcome += applicant->judge(visitor->receive(kVerdictSize)) ? 0 : 1;
  }
  CHECK(welcome == kGuests);
  CHECK(door.bell.waitUntil([&] { return door.admitted() == kGuests; }));
}

TEST_CASE("a door that closes lets its guests go", "[door]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  { const DoorUnderTest warmUp(medium); }
  const auto before = openFiles();
  {
    DoorUnderTest door(medium);
    Visitor silent(door.address);
    Visitor greeting(door.address);
    Applicant applicant(door.key, door.medium, kDoorLane);
    greeting.send(applicant.greet());
    CHECK(greeting.receive(kChallengeSize).size() == kChallengeSize);
    door.close();
    CHECK(greeting.isLetGo());
    CHECK(silent.isLetGo());
    CHECK_THROWS_AS(Visitor(door.address), std::runtime_error);
  }
  CHECK(openFiles() == before);
}

TEST_CASE("a door may be closed by the guest that it lets in", "[door]") {
  const auto loop = Loop::start("door");
  Descriptor listening = listenSomewhere(Medium::tcp);
  const SocketAddress address = SocketAddress::ofSocket(listening.get());
  const GroupKey key(kDoorGroup, kDoorSecret);
  std::unique_ptr<Door> door;
  Descriptor admitted;
  Door::Events events;
  events.hasLane = [](uint8_t) { return true; };
  events.admitted = [&](Door::Admitted guest) {
    admitted = Descriptor(guest.socket);
    loop->post([&] { door.reset(); });
  };
  onLoop(*loop, [&] {
    door = std::make_unique<Door>(*loop, listening.take(), key, Medium::tcp, 0, std::move(events));
  });
  Visitor visitor(address), other(address);
  Applicant applicant(key, Medium::tcp, kDoorLane);
  visitor.send(applicant.greet());
  visitor.send(applicant.answerChallenge(visitor.receive(kChallengeSize)).send);
  CHECK_FALSE(applicant.judge(visitor.receive(kVerdictSize)).has_value());
  CHECK(other.isLetGo());
  onLoop(*loop, [&] { admitted = Descriptor(); });
}

TEST_CASE("guests wait outside while there are no files left", "[door]") {
#ifdef __SANITIZE_ADDRESS__
  WARN("the sanitizers need files themselves, and report what is right without them");
#else
  DoorUnderTest door(Medium::shm);
  const auto memory = memoryFor(door);
  Descriptor dialling(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit scarce = before;
  scarce.rlim_cur = 64;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &scarce) == 0);
  std::vector<Descriptor> files;
  for (int file = 0; (file = dup(STDIN_FILENO)) >= 0;) {
    files.emplace_back(file);
  }
  const int failed = connect(dialling.get(), door.address.get(), door.address.size());
  for (int i = 0; i < 10; ++i) {
    onLoop(*door.loop, [] {}); // the door has looked outside meanwhile
  }
  setrlimit(RLIMIT_NOFILE, &before);
  files.clear();
  REQUIRE(failed == 0);
  Visitor late(std::move(dialling));
  CHECK(door.enter(late, descriptorOf(memory)) == Answer::welcome);
#endif
}
