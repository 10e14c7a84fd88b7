#include "backend/transport/acceptor.h"

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

#include "test/unit/support/acceptor_under_test.h"
#include "test/unit/support/open_files.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

std::optional<MemoryFile> memoryFor(const AcceptorUnderTest& acceptor) {
  std::optional<MemoryFile> memory;
  if (acceptor.memorySize() != 0) {
    memory.emplace(MemoryFile::create(acceptor.memorySize()));
  }
  return memory;
}

int descriptorOf(const std::optional<MemoryFile>& memory) {
  return memory ? memory->descriptor() : -1;
}

} // namespace

TEST_CASE(
    "whoever knows the secret is let in, with the lane and the memory asked for", "[acceptor]") {
  AcceptorUnderTest acceptor(GENERATE(Medium::shm, Medium::tcp));
  Visitor visitor(acceptor.address);
  const auto memory = memoryFor(acceptor);
  CHECK(acceptor.enter(visitor, descriptorOf(memory)) == Answer::welcome);
  Acceptor::Admitted peer = acceptor.take();
  const Descriptor socket(peer.socket);
  CHECK(peer.lane == kAcceptorLane);
  CHECK(peer.memory.has_value() == memory.has_value());
  if (memory && peer.memory) {
    memory->data()[17] = 'x';
    CHECK(peer.memory->data()[17] == 'x');
    CHECK(peer.memory->descriptor() == -1);
  }
}

TEST_CASE("the socket of a peer that was let in is its own, and does not block", "[acceptor]") {
  AcceptorUnderTest acceptor(GENERATE(Medium::shm, Medium::tcp));
  Visitor visitor(acceptor.address);
  const auto memory = memoryFor(acceptor);
  REQUIRE(acceptor.enter(visitor, descriptorOf(memory)) == Answer::welcome);
  const Descriptor socket(acceptor.take().socket);
  char byte = 0;
  CHECK(recv(socket.get(), &byte, 1, 0) == -1);
  CHECK(errno == EAGAIN);
  CHECK((fcntl(socket.get(), F_GETFD) & FD_CLOEXEC) != 0);
  acceptor.close(); // it is not the acceptor's any more
  CHECK(send(socket.get(), "x", 1, MSG_NOSIGNAL) == 1);
  CHECK(visitor.receive(1) == HandshakeBytes{'x'});
}

TEST_CASE(
    "what a peer sends right behind its proof is left for whoever takes the socket", "[acceptor]") {
  AcceptorUnderTest acceptor(Medium::tcp);
  Visitor visitor(acceptor.address);
  HandshakeInitiator initiator(acceptor.key, Medium::tcp, kAcceptorLane, acceptor.terms());
  visitor.send(initiator.greet());
  HandshakeBytes proof = initiator.answerChallenge(visitor.receive(kChallengeSize)).send;
  proof.push_back('x');
  visitor.send(proof);
  CHECK_FALSE(initiator.judge(visitor.receive(kAuthResultSize)).has_value());
  const Descriptor socket(acceptor.take().socket);
  char byte = 0;
  CHECK(recv(socket.get(), &byte, 1, 0) == 1);
  CHECK(byte == 'x');
}

TEST_CASE("a handshake may come byte by byte", "[acceptor]") {
  AcceptorUnderTest acceptor(GENERATE(Medium::shm, Medium::tcp));
  Visitor visitor(acceptor.address);
  const auto memory = memoryFor(acceptor);
  HandshakeInitiator initiator(acceptor.key, acceptor.medium, kAcceptorLane, acceptor.terms());
  const auto sendSlowly = [&](const HandshakeBytes& message, int descriptor) {
    for (size_t i = 0; i < message.size(); ++i) {
      visitor.send(ForeignBytes(message).subspan(i, 1), i == message.size() / 2 ? descriptor : -1);
      std::this_thread::yield();
    }
  };
  sendSlowly(initiator.greet(), -1);
  sendSlowly(initiator.answerChallenge(visitor.receive(kChallengeSize)).send, descriptorOf(memory));
  CHECK_FALSE(initiator.judge(visitor.receive(kAuthResultSize)).has_value());
  const Descriptor socket(acceptor.take().socket);
}

TEST_CASE("many peers at a time are all let in, whatever the order of their words", "[acceptor]") {
  constexpr size_t kPeers = 150; // more than are accepted in one go
  AcceptorUnderTest acceptor(GENERATE(Medium::shm, Medium::tcp));
  const auto memory = memoryFor(acceptor);
  std::list<Visitor> visitors;
  std::list<HandshakeInitiator> initiators;
  for (size_t i = 0; i < kPeers; ++i) {
    visitors.emplace_back(acceptor.address);
    initiators.emplace_back(acceptor.key, acceptor.medium, kAcceptorLane, acceptor.terms());
    visitors.back().send(initiators.back().greet());
  }
  auto initiator = initiators.rbegin();
  for (auto visitor = visitors.rbegin(); visitor != visitors.rend(); ++visitor, ++initiator) {
    visitor->send(
        initiator->answerChallenge(visitor->receive(kChallengeSize)).send, descriptorOf(memory));
  }
  size_t welcome = 0;
  initiator = initiators.rbegin();
  for (auto visitor = visitors.rbegin(); visitor != visitors.rend(); ++visitor, ++initiator) {
    welcome += initiator->judge(visitor->receive(kAuthResultSize)) ? 0 : 1;
  }
  CHECK(welcome == kPeers);
  CHECK(acceptor.notifier.waitUntil([&] { return acceptor.admitted() == kPeers; }));
}

TEST_CASE("an acceptor that closes ends its pending handshakes", "[acceptor]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  {
    const AcceptorUnderTest warmUp(medium);
  }
  const auto before = openFiles();
  {
    AcceptorUnderTest acceptor(medium);
    Visitor silent(acceptor.address);
    Visitor greeting(acceptor.address);
    HandshakeInitiator initiator(acceptor.key, acceptor.medium, kAcceptorLane, acceptor.terms());
    greeting.send(initiator.greet());
    CHECK(greeting.receive(kChallengeSize).size() == kChallengeSize);
    acceptor.close();
    CHECK(greeting.isDisconnected());
    CHECK(silent.isDisconnected());
    CHECK_THROWS_AS(Visitor(acceptor.address), std::runtime_error);
  }
  CHECK(openFiles() == before);
}

TEST_CASE("an acceptor may be closed by the peer that it lets in", "[acceptor]") {
  const auto loop = Loop::start("acceptor");
  Descriptor listening = listenSomewhere(Medium::tcp);
  const SocketAddress address = SocketAddress::ofSocket(listening.get());
  const GroupKey key(kAcceptorGroup, kAcceptorSecret);
  std::unique_ptr<Acceptor> acceptor;
  Descriptor admitted;
  Acceptor::Events events;
  events.hasLane = [](uint8_t) { return true; };
  events.admitted = [&](Acceptor::Admitted peer) {
    admitted = Descriptor(peer.socket);
    loop->post([&] { acceptor.reset(); });
  };
  onLoop(*loop, [&] {
    acceptor = std::make_unique<Acceptor>(
        *loop, listening.take(), std::make_shared<const KeyRing>(key),
        Acceptor::Place{address.describe(), Medium::tcp}, std::move(events));
  });
  Visitor visitor(address), other(address);
  HandshakeInitiator initiator(key, Medium::tcp, kAcceptorLane, {address.describe()});
  visitor.send(initiator.greet());
  visitor.send(initiator.answerChallenge(visitor.receive(kChallengeSize)).send);
  CHECK_FALSE(initiator.judge(visitor.receive(kAuthResultSize)).has_value());
  CHECK(other.isDisconnected());
  onLoop(*loop, [&] { admitted = Descriptor(); });
}

TEST_CASE("a peer is told that there are no files left", "[acceptor]") {
#ifdef __SANITIZE_ADDRESS__
  WARN("the sanitizers need files themselves, and report what is right without them");
#else
  AcceptorUnderTest acceptor(Medium::shm);
  const auto memory = memoryFor(acceptor);
  Descriptor dialing(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit scarce = before;
  scarce.rlim_cur = 64;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &scarce) == 0);
  std::vector<Descriptor> files;
  for (int file = 0; (file = dup(STDIN_FILENO)) >= 0;) {
    files.emplace_back(file);
  }
  const int failed = connect(dialing.get(), acceptor.address.get(), acceptor.address.size());
  Visitor early(std::move(dialing));
  const Answer answer = acceptor.enter(early, descriptorOf(memory));
  setrlimit(RLIMIT_NOFILE, &before);
  files.clear();
  REQUIRE(failed == 0);
  CHECK(answer == Answer::outOfFiles);
  Visitor late(acceptor.address);
  CHECK(acceptor.enter(late, descriptorOf(memory)) == Answer::welcome);
#endif
}
