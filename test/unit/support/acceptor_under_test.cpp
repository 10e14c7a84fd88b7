#include "test/unit/support/acceptor_under_test.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <utility>

namespace torchwire {

Descriptor bindSomewhere(Medium medium) {
  static std::atomic<int> count{0};
  const SocketAddress address = medium == Medium::tcp
      ? SocketAddress::tcp("127.0.0.1:0")
      : SocketAddress::abstractUnix(
            "torchwire-test-" + std::to_string(getpid()) + "-" + std::to_string(count++));
  Descriptor bound(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (bound.get() < 0 || bind(bound.get(), address.get(), address.size()) != 0) {
    throw std::runtime_error("cannot bind a socket");
  }
  return bound;
}

Descriptor listenSomewhere(Medium medium, int backlog) {
  Descriptor listening = bindSomewhere(medium);
  if (listen(listening.get(), backlog) != 0) {
    throw std::runtime_error("cannot listen");
  }
  return listening;
}

// ---- Visitor --------------------------------------------------------------------------------------

Visitor::Visitor(const SocketAddress& address)
    : Visitor(Descriptor(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0))) {
  if (connect(socket_.get(), address.get(), address.size()) != 0) {
    throw std::runtime_error("nobody listens");
  }
}

Visitor::Visitor(Descriptor connected) : socket_(std::move(connected)) {
  const timeval patience{10, 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

void Visitor::send(ForeignBytes bytes, int descriptor) {
  sendAll(socket_.get(), bytes, descriptor); // the other side may have gone
}

HandshakeBytes Visitor::receive(size_t count) {
  HandshakeBytes bytes(count);
  size_t received = 0;
  while (received < count) {
    const ssize_t got = receiveSome(bytes.data() + received, count - received);
    if (got <= 0) {
      break;
    }
    received += static_cast<size_t>(got);
  }
  bytes.resize(received);
  return bytes;
}

bool Visitor::isDisconnected() {
  unsigned char lost[256];
  ssize_t got = 0;
  while ((got = receiveSome(lost, sizeof lost)) > 0) {
  }
  return got == 0 || errno == ECONNRESET;
}

ssize_t Visitor::receiveSome(unsigned char* into, size_t length) {
  ssize_t got = 0;
  do {
    got = recv(socket_.get(), into, length, 0);
  } while (got < 0 && errno == EINTR); // with a patience, the system does not go on by itself
  return got;
}

void Visitor::reset() {
  const linger atOnce{1, 0};
  setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &atOnce, sizeof atOnce);
  leave();
}

// ---- AcceptorUnderTest ----------------------------------------------------------------------------

AcceptorUnderTest::AcceptorUnderTest(
    Medium theMedium, AcceptorLimits limits, Descriptor listening, Encryption encryption)
    : medium(theMedium),
      loop(Loop::start("acceptor")),
      address(SocketAddress::ofSocket(listening.get())) {
  Acceptor::Events events;
  events.hasLane = [](uint8_t lane) { return lane == kAcceptorLane; };
  events.admitted = [this](Acceptor::Admitted peer) {
    {
      MutexLock lock(mutex_);
      admitted_.push_back(std::move(peer));
    }
    notifier.notify();
  };
  onLoop(*loop, [&] {
    acceptor_ = std::make_unique<Acceptor>(
        *loop, listening.take(), std::make_shared<const KeyRing>(key),
        Acceptor::Place{address.describe(), medium, memorySize(), encryption}, std::move(events),
        limits);
  });
}

AcceptorUnderTest::~AcceptorUnderTest() {
  close();
  MutexLock lock(mutex_);
  for (const Acceptor::Admitted& peer : admitted_) {
    ::close(peer.socket);
  }
}

void AcceptorUnderTest::close() {
  onLoop(*loop, [this] { acceptor_.reset(); });
}

size_t AcceptorUnderTest::admitted() const {
  MutexLock lock(mutex_);
  return admitted_.size();
}

Acceptor::Admitted AcceptorUnderTest::take() {
  if (!notifier.waitUntil([this] { return admitted() > 0; })) {
    throw std::runtime_error("nobody was admitted");
  }
  MutexLock lock(mutex_);
  Acceptor::Admitted first = std::move(admitted_.front());
  std::vector<Acceptor::Admitted> others; // a memory file can be moved, but not assigned
  for (size_t i = 1; i < admitted_.size(); ++i) {
    others.push_back(std::move(admitted_[i]));
  }
  admitted_.swap(others);
  return first;
}

Answer AcceptorUnderTest::enter(Visitor& visitor, int memory) {
  HandshakeInitiator initiator(key, medium, kAcceptorLane, terms());
  visitor.send(initiator.greet());
  const HandshakeBytes challenge = visitor.receive(kChallengeSize);
  const HandshakeInitiator::Step step = initiator.answerChallenge(challenge);
  if (!step.refusal.empty()) {
    return answerIn(challenge);
  }
  visitor.send(step.send, memory);
  const HandshakeBytes authResult = visitor.receive(kAuthResultSize);
  return initiator.judge(authResult) && answerIn(authResult) == Answer::welcome
      ? Answer::wrongProof
      : answerIn(authResult);
}

bool AcceptorUnderTest::admitsHonestPeer() {
  Visitor honest(address);
  std::optional<MemoryFile> memory;
  if (memorySize() != 0) {
    memory.emplace(MemoryFile::create(memorySize()));
  }
  if (enter(honest, memory ? memory->descriptor() : -1) != Answer::welcome) {
    return false;
  }
  ::close(take().socket);
  return true;
}

Answer answerIn(const HandshakeBytes& message) {
  switch (message.size()) {
    case kChallengeSize:
      return static_cast<Answer>(message[6]);
    case kAuthResultSize:
      return static_cast<Answer>(message[0]);
    default:
      return Answer::notUnderstood; // it closed early
  }
}

} // namespace torchwire
