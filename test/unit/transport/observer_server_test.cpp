#include "backend/transport/observer_server.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backend/tensorpipe/tcp_transport.h"
#include "test/unit/support/acceptor_under_test.h"
#include "test/unit/support/notifier.h"
#include "test/unit/support/on_loop.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

constexpr auto kStatus = static_cast<uint8_t>(ObserverQuestion::status);
constexpr size_t kHead = 1 + sizeof(uint64_t);

/// A worker's endpoint, whose answers are given by the test.
class ServerUnderTest {
 public:
  explicit ServerUnderTest(ObserverLimits limits = ObserverLimits())
      : loop(Loop::start("observers")),
        endpoint_(openTcpEndpoint(
            loop, std::make_shared<const KeyRing>(key), {.bindAddress = "127.0.0.1:0"})),
        server_(
            std::make_shared<ObserverServer>(
                endpoint_,
                [this](ObserverQuestion question, ObserverReply reply) {
                  return take(question, std::move(reply));
                },
                limits)) {
    server_->open();
    onLoop(*loop, [] {}); // it is open
  }
  ~ServerUnderTest() {
    server_->close();
    onLoop(*loop, [] {});
  }
  ServerUnderTest(const ServerUnderTest&) = delete;
  ServerUnderTest& operator=(const ServerUnderTest&) = delete;

  SocketAddress address() const {
    return SocketAddress::tcp(endpoint_->addressOf(0));
  }
  HandshakeTerms terms() const {
    return {.address = address().describe(), .sealing = Sealing::ifWanted};
  }
  /// What the endpoint answers last.
  Answer enter(Visitor& visitor, uint8_t lane = kStatus) {
    HandshakeInitiator initiator(key, Medium::tcp, lane, terms());
    visitor.send(initiator.greet());
    const HandshakeBytes challenge = visitor.receive(kChallengeSize);
    const HandshakeInitiator::Step step = initiator.answerChallenge(challenge);
    if (!step.refusal.empty()) {
      return answerIn(challenge);
    }
    visitor.send(step.send);
    return answerIn(visitor.receive(kAuthResultSize));
  }
  size_t asked() {
    MutexLock lock(mutex_);
    return questions_.size();
  }
  ObserverQuestion question(size_t number) {
    REQUIRE(notifier.waitUntil([&] { return asked() > number; }));
    MutexLock lock(mutex_);
    return questions_[number].first;
  }
  void reply(size_t number, ObserverAnswer answer) {
    question(number);
    ObserverReply reply;
    {
      MutexLock lock(mutex_);
      reply = questions_[number].second;
    }
    reply(std::move(answer));
  }
  bool waitForTaken(size_t count) {
    const auto end = std::chrono::steady_clock::now() + Notifier::kPatience;
    while (onLoop(*loop, [&] { return server_->taken(); }) != count) {
      if (std::chrono::steady_clock::now() > end) {
        return false;
      }
    }
    return true;
  }
  void close() {
    server_->close();
    onLoop(*loop, [] {});
  }
  void endAnswers() {
    MutexLock lock(mutex_);
    ended_ = true;
  }

  const GroupKey key{kAcceptorGroup, kAcceptorSecret};
  const std::shared_ptr<Loop> loop;
  Notifier notifier;

 private:
  bool take(ObserverQuestion question, ObserverReply reply) {
    {
      MutexLock lock(mutex_);
      if (ended_) {
        return false;
      }
      questions_.emplace_back(question, std::move(reply));
    }
    notifier.notify();
    return true;
  }

  const std::shared_ptr<Endpoint> endpoint_;
  const std::shared_ptr<ObserverServer> server_;
  Mutex mutex_{LockRank::test};
  std::vector<std::pair<ObserverQuestion, ObserverReply>> questions_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
};

/// Reads one, and that the connection is closed behind it.
ObserverAnswer answerTo(Visitor& visitor) {
  const HandshakeBytes head = visitor.receive(kHead);
  REQUIRE(head.size() == kHead);
  uint64_t length = 0;
  std::memcpy(&length, head.data() + 1, sizeof length);
  const HandshakeBytes text = visitor.receive(length);
  CHECK(text.size() == length);
  CHECK(visitor.isDisconnected());
  return {head[0] != 0, std::string(text.begin(), text.end())};
}

} // namespace

TEST_CASE("an observer gets the answer to what its lane asks", "[observer_server]") {
  ServerUnderTest server;
  const auto asked = GENERATE(ObserverQuestion::status, ObserverQuestion::dump);
  const bool failed = GENERATE(false, true);
  Visitor visitor(server.address());
  REQUIRE(server.enter(visitor, static_cast<uint8_t>(asked)) == Answer::welcome);
  CHECK(server.question(0) == asked);
  server.reply(0, {failed, "all is well"});
  const ObserverAnswer answer = answerTo(visitor);
  CHECK(answer.text == "all is well");
  CHECK(answer.failed == failed);
  CHECK(server.waitForTaken(0));
}

TEST_CASE("a long answer comes as a whole", "[observer_server]") {
  ServerUnderTest server;
  Visitor visitor(server.address());
  REQUIRE(server.enter(visitor) == Answer::welcome);
  const std::string text(32 << 20, 'x'); // more than sockets hold
  server.reply(0, {false, text});
  CHECK(answerTo(visitor).text == text);
}

TEST_CASE("who does not know the secret asks nothing", "[observer_server]") {
  ServerUnderTest server;
  Visitor visitor(server.address());
  const GroupKey other(kAcceptorGroup, "another secret of enough bytes");
  HandshakeInitiator initiator(other, Medium::tcp, kStatus, server.terms());
  visitor.send(initiator.greet());
  visitor.send(initiator.answerChallenge(visitor.receive(kChallengeSize)).send);
  CHECK(answerIn(visitor.receive(kAuthResultSize)) == Answer::wrongProof);
  CHECK(visitor.isDisconnected());
  CHECK(server.asked() == 0);
}

TEST_CASE("those above the limit are told so, and places come back", "[observer_server]") {
  ServerUnderTest server({.atATime = 2});
  Visitor first(server.address()), second(server.address());
  REQUIRE(server.enter(first) == Answer::welcome);
  REQUIRE(server.enter(second) == Answer::welcome);
  REQUIRE(server.waitForTaken(2));
  {
    Visitor third(server.address());
    REQUIRE(server.enter(third) == Answer::welcome);
    const ObserverAnswer refusal = answerTo(third);
    CHECK(refusal.failed);
    CHECK(refusal.text.find("as many observers as it may") != std::string::npos);
  }
  CHECK(server.asked() == 2);
  server.reply(1, {false, "two"});
  CHECK(answerTo(second).text == "two");
  REQUIRE(server.waitForTaken(1));
  Visitor fourth(server.address());
  REQUIRE(server.enter(fourth) == Answer::welcome);
  server.reply(2, {false, "four"});
  CHECK(answerTo(fourth).text == "four");
}

TEST_CASE("one that has gone keeps its place until its answer is there", "[observer_server]") {
  ServerUnderTest server;
  {
    Visitor visitor(server.address());
    REQUIRE(server.enter(visitor) == Answer::welcome);
    server.question(0);
    GENERATE(false, true) ? visitor.reset() : visitor.leave();
  }
  CHECK(server.waitForTaken(1));
  server.reply(0, {false, "too late"});
  CHECK(server.waitForTaken(0));
}

TEST_CASE("one that stalls is left when its time is over", "[observer_server]") {
  ServerUnderTest server({.patience = milliseconds(50)});
  Visitor visitor(server.address());
  REQUIRE(server.enter(visitor) == Answer::welcome);
  server.reply(0, {false, std::string(32 << 20, 'x')});
  CHECK(server.waitForTaken(0));
  CHECK(visitor.isDisconnected());
}

TEST_CASE("one that talks is left", "[observer_server]") {
  ServerUnderTest server;
  Visitor visitor(server.address());
  REQUIRE(server.enter(visitor) == Answer::welcome);
  server.question(0);
  visitor.send(HandshakeBytes{'x'});
  CHECK(visitor.isDisconnected());
  server.reply(0, {false, "too late"});
  CHECK(server.waitForTaken(0));
}

TEST_CASE("where there are no answers any more, observers are told", "[observer_server]") {
  ServerUnderTest server;
  server.endAnswers();
  Visitor visitor(server.address());
  REQUIRE(server.enter(visitor) == Answer::welcome);
  CHECK(answerTo(visitor).text == "shuts down");
}

TEST_CASE("once it is closed nobody is let in, and late answers are dropped", "[observer_server]") {
  ServerUnderTest server;
  Visitor visitor(server.address());
  REQUIRE(server.enter(visitor) == Answer::welcome);
  server.question(0);
  server.close();
  CHECK(visitor.isDisconnected());
  server.reply(0, {false, "too late"});
  Visitor late(server.address());
  CHECK(server.enter(late) == Answer::noSuchLane);
}
