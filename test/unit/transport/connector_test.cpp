#include "backend/transport/connector.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "test/unit/support/acceptor_under_test.h"
#include "test/unit/support/callback_ledger.h"
#include "test/unit/support/open_files.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr milliseconds kTick{1}; // libuv counts in whole milliseconds
constexpr DialLimits kPatient{milliseconds(10000), milliseconds(10000)};
constexpr DialLimits kImpatient{milliseconds(80), milliseconds(30)};

/// A connector on a loop of its own, and what became of it.
class Dial {
 public:
  Dial(
      Medium medium, SocketAddress address, const GroupKey& key, DialLimits limits = kPatient,
      uint8_t lane = kAcceptorLane, Encryption encryption = Encryption::off)
      : note_(ledger_.note("the dial to " + address.describe())) {
    const size_t memorySize = medium == Medium::shm ? kAcceptorMemory : 0;
    onLoop(*loop_, [&] {
      connector_ = std::make_unique<Connector>(
          *loop_, std::make_shared<const KeyRing>(key),
          Connector::Target{address, medium, lane, memorySize, encryption},
          [this](const Error& error, Connector::Reached reached) {
            done(error, std::move(reached));
          },
          limits);
      connector_->start();
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
        onLoop(*loop_, [this] { return std::exchange(connector_, nullptr) != nullptr; });
    if (early && !note_.called()) {
      ledger_.forgive();
    }
  }
  bool isOver() const {
    return note_.called();
  }
  Error error() {
    if (!ledger_.waitForAll()) {
      return Error(ErrorCode::timeout, "the connector does not come to an end");
    }
    return note_.error();
  }

  // What was reached, after error().
  Descriptor socket;
  std::unique_ptr<MemoryFile> memory;
  std::optional<SealedBy> sealedBy;

 private:
  void done(const Error& error, Connector::Reached reached) {
    connector_.reset();
    socket = Descriptor(reached.socket);
    sealedBy = std::move(reached.sealedBy);
    if (reached.memory) {
      memory = std::make_unique<MemoryFile>(std::move(*reached.memory));
    }
    note_.add(error);
  }

  CallbackLedger ledger_;
  CallbackNote& note_;
  const std::shared_ptr<Loop> loop_ = Loop::start("connector");
  std::unique_ptr<Connector> connector_;
};

const GroupKey kKey(kAcceptorGroup, kAcceptorSecret);

/// A socket that listens, and the test in the place of an acceptor.
struct FakeAcceptor {
  explicit FakeAcceptor(Medium theMedium)
      : medium(theMedium), listening(listenSomewhere(theMedium)) {}

  SocketAddress address() const {
    return SocketAddress::ofSocket(listening.get());
  }
  /// The next that connects.
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

TEST_CASE(
    "a connector reaches an acceptor, and both have the two ends of one connection",
    "[connector]") {
  AcceptorUnderTest acceptor(GENERATE(Medium::shm, Medium::tcp));
  Dial dial(acceptor.medium, acceptor.address, kKey);
  REQUIRE_FALSE(dial.error());
  Acceptor::Admitted peer = acceptor.take();
  const Descriptor accepted(peer.socket);
  CHECK(peer.lane == kAcceptorLane);
  CHECK(send(dial.socket.get(), "there", 5, MSG_NOSIGNAL) == 5);
  char text[6] = "";
  CHECK(recv(accepted.get(), text, 5, 0) == 5);
  CHECK(std::string(text) == "there");
  CHECK(send(accepted.get(), "back!", 5, MSG_NOSIGNAL) == 5);
  CHECK(recv(dial.socket.get(), text, 5, 0) == 5);
  CHECK(std::string(text) == "back!");
  REQUIRE((dial.memory != nullptr) == (acceptor.medium == Medium::shm));
  if (dial.memory) {
    dial.memory->data()[99] = 'x';
    CHECK(peer.memory->data()[99] == 'x');
    CHECK(dial.memory->descriptor() == -1); // nobody needs it any more
  }
}

TEST_CASE("many connectors reach an acceptor at once", "[connector]") {
  AcceptorUnderTest acceptor(GENERATE(Medium::shm, Medium::tcp));
  std::vector<std::unique_ptr<Dial>> dials;
  for (int i = 0; i < 60; ++i) {
    dials.push_back(std::make_unique<Dial>(acceptor.medium, acceptor.address, kKey));
  }
  int reached = 0;
  for (const auto& dial : dials) {
    reached += dial->error() ? 0 : 1;
  }
  CHECK(reached == 60);
}

TEST_CASE("a connection that was made and undone leaves no file behind", "[connector]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  {
    const AcceptorUnderTest warmUp(medium);
  }
  const auto before = openFiles();
  {
    AcceptorUnderTest acceptor(medium);
    Dial dial(medium, acceptor.address, kKey);
    CHECK_FALSE(dial.error());
    Dial refused(medium, acceptor.address, GroupKey(kAcceptorGroup, "another secret..."));
    CHECK(refused.error());
  }
  CHECK(openFiles() == before);
}

// ---- nobody there, or not yet ---------------------------------------------------------------------

TEST_CASE("where nobody listens a connector says so soon, with the address", "[connector]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  const Descriptor bound = bindSomewhere(medium);
  const SocketAddress address = SocketAddress::ofSocket(bound.get());
  const auto begin = Clock::now();
  Dial dial(medium, address, kKey, {milliseconds(10000), milliseconds(50)});
  const Error error = dial.error();
  CHECK(Clock::now() - begin >= milliseconds(50) - kTick);
  CHECK(Clock::now() - begin < milliseconds(5000));
  // The name of a Unix socket may belong to another network namespace.
  CHECK(
      error.code() == (medium == Medium::tcp ? ErrorCode::nobodyListens : ErrorCode::unreachable));
  CHECK_THAT(
      error.message(),
      Catch::StartsWith("cannot connect to " + address.describe() + " over wire_"));
  CHECK_THAT(error.message(), Catch::EndsWith(": Connection refused"));
}

TEST_CASE("a connector's patience ends, also where it tries again all the time", "[connector]") {
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

TEST_CASE("a connector reaches an acceptor that is opened after it began to dial", "[connector]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  Descriptor bound = bindSomewhere(medium);
  Dial dial(medium, SocketAddress::ofSocket(bound.get()), kKey);
  CHECK_FALSE(dial.isOver());
  REQUIRE(listen(bound.get(), 8) == 0);
  AcceptorUnderTest acceptor(medium, AcceptorLimits(), std::move(bound));
  CHECK_FALSE(dial.error());
}

TEST_CASE("a connector waits while too many others do", "[connector]") {
  Descriptor listening = listenSomewhere(Medium::shm, 0); // room for one
  const SocketAddress address = SocketAddress::ofSocket(listening.get());
  Visitor first(address);
  Dial dial(Medium::shm, address, kKey);
  CHECK_FALSE(dial.isOver());
  AcceptorUnderTest acceptor(Medium::shm, AcceptorLimits(), std::move(listening));
  CHECK_FALSE(dial.error());
}

TEST_CASE("a connection that is closed during the handshake is tried again", "[connector]") {
  FakeAcceptor fake(GENERATE(Medium::shm, Medium::tcp));
  const SocketAddress address = fake.address();
  Dial dial(fake.medium, address, kKey);
  fake.accept().leave();
  {
    Visitor dialing = fake.accept();
    CHECK(dialing.receive(kGreetingSize).size() == kGreetingSize);
  }
  {
    HandshakeResponder responder(kKey, fake.medium, {fake.address().describe()});
    Visitor dialing = fake.accept();
    const HandshakeBytes greeting = dialing.receive(kGreetingSize);
    dialing.send(responder.challenge(greeting, [](uint8_t) { return true; }).send);
    CHECK(dialing.receive(kProofSize).size() == kProofSize);
  }
  AcceptorUnderTest acceptor(fake.medium, AcceptorLimits(), std::move(fake.listening));
  CHECK_FALSE(dial.error());
}

TEST_CASE("a peer that always closes during the handshake is told of in the end", "[connector]") {
  AcceptorUnderTest acceptor(
      GENERATE(Medium::shm, Medium::tcp),
      {.patience = milliseconds(0), .maxPending = 256, .minAge = milliseconds(0)});
  Dial dial(acceptor.medium, acceptor.address, kKey, kImpatient);
  const Error error = dial.error();
  if (error) { // a quick handshake may succeed
    CHECK(error.code() == ErrorCode::unreachable);
    CHECK_THAT(
        error.message(), Catch::StartsWith("cannot connect to " + acceptor.address.describe()));
  }
}

TEST_CASE("a peer that says nothing is waited for no longer than the patience", "[connector]") {
  const FakeAcceptor fake(GENERATE(Medium::shm, Medium::tcp));
  const bool accepts = GENERATE(true, false);
  const auto begin = Clock::now();
  Dial dial(fake.medium, fake.address(), kKey, kImpatient);
  std::unique_ptr<Visitor> dialing;
  if (accepts) {
    dialing = std::make_unique<Visitor>(fake.accept());
  }
  const Error error = dial.error();
  CHECK(Clock::now() - begin >= kImpatient.patience - kTick);
  CHECK(error.code() == ErrorCode::unreachable);
  CHECK_THAT(error.message(), Catch::EndsWith(": no answer"));
}

TEST_CASE("an address that cannot be dialed is an error", "[connector]") {
  // TCP does not broadcast.
  Dial dial(Medium::tcp, SocketAddress::tcp("255.255.255.255:1"), kKey, kImpatient);
  CHECK(dial.error().code() == ErrorCode::unreachable);
}

TEST_CASE(
    "a connector and an acceptor seal a connection where one of them wants it", "[connector]") {
  const auto [dialing, accepting] = GENERATE(
      std::pair(Encryption::on, Encryption::automatic),
      std::pair(Encryption::automatic, Encryption::on), std::pair(Encryption::on, Encryption::on));
  AcceptorUnderTest acceptor(Medium::tcp, {}, listenSomewhere(Medium::tcp), accepting);
  Dial dial(Medium::tcp, acceptor.address, kKey, kPatient, kAcceptorLane, dialing);
  REQUIRE_FALSE(dial.error());
  const Acceptor::Admitted peer = acceptor.take();
  const Descriptor socket(peer.socket);
  REQUIRE(dial.sealedBy);
  REQUIRE(peer.sealedBy);
  CHECK(dial.sealedBy->outgoing.key == peer.sealedBy->incoming.key);
  CHECK(dial.sealedBy->incoming.key == peer.sealedBy->outgoing.key);
}

TEST_CASE("shared memory is not sealed, nor a connection within a host by itself", "[connector]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  const Encryption encryption = medium == Medium::shm ? Encryption::on : Encryption::automatic;
  AcceptorUnderTest acceptor(medium, {}, listenSomewhere(medium), encryption);
  Dial dial(medium, acceptor.address, kKey, kPatient, kAcceptorLane, encryption);
  REQUIRE_FALSE(dial.error());
  const Acceptor::Admitted peer = acceptor.take();
  const Descriptor socket(peer.socket);
  CHECK_FALSE(dial.sealedBy);
  CHECK_FALSE(peer.sealedBy);
}

TEST_CASE("a connection between two addresses is to be sealed", "[connector]") {
  const Descriptor listening = listenSomewhere(Medium::tcp);
  const SocketAddress to = SocketAddress::ofSocket(listening.get());
  const SocketAddress from = SocketAddress::tcp(GENERATE("127.0.0.1", "127.0.0.2"));
  const Descriptor dialing(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(bind(dialing.get(), from.get(), from.size()) == 0);
  REQUIRE(connect(dialing.get(), to.get(), to.size()) == 0);
  SocketAddress peer;
  const Descriptor accepted(peer.accept(listening.get()));
  const Sealing expected = from.host() == to.host() ? Sealing::ifWanted : Sealing::wanted;
  for (const int end : {dialing.get(), accepted.get()}) {
    CHECK(sealingOf(Encryption::automatic, end) == expected);
    CHECK(sealingOf(Encryption::on, end) == Sealing::wanted);
    CHECK(sealingOf(Encryption::off, end) == Sealing::off);
  }
}

// ---- refused --------------------------------------------------------------------------------------

TEST_CASE("a connector that is refused says why, and does not try again", "[connector]") {
  AcceptorUnderTest acceptor(GENERATE(Medium::shm, Medium::tcp));
  const auto objection = [&](const GroupKey& key, uint8_t lane) {
    Dial dial(acceptor.medium, acceptor.address, key, kPatient, lane);
    const Error error = dial.error();
    CHECK(error.code() == ErrorCode::notAdmitted);
    CHECK_THAT(error.message(), Catch::StartsWith("refused by " + acceptor.address.describe()));
    return error.message();
  };
  CHECK_THAT(
      objection(GroupKey(kAcceptorGroup, "another secret..."), kAcceptorLane),
      Catch::EndsWith(describe(Answer::wrongProof)));
  CHECK_THAT(
      objection(GroupKey(kAcceptorGroup + 1, kAcceptorSecret), kAcceptorLane),
      Catch::EndsWith(describe(Answer::otherGroup)));
  CHECK_THAT(objection(kKey, kAcceptorLane + 1), Catch::EndsWith(describe(Answer::noSuchLane)));
  CHECK(acceptor.admitted() == 0);
}

TEST_CASE("a connector talks to nobody who does not prove to be of the group", "[connector]") {
  const FakeAcceptor fake(GENERATE(Medium::shm, Medium::tcp));
  const GroupKey otherKey(kAcceptorGroup, "another secret...");
  HandshakeResponder impostor(otherKey, fake.medium);
  Dial dial(fake.medium, fake.address(), kKey);
  Visitor dialing = fake.accept();
  const HandshakeBytes greeting = dialing.receive(kGreetingSize);
  dialing.send(impostor.challenge(greeting, [](uint8_t) { return true; }).send);
  impostor.check(dialing.receive(kProofSize));
  dialing.send(impostor.authResult(Answer::welcome));
  const Error error = dial.error();
  CHECK(error.code() == ErrorCode::notAdmitted);
  CHECK_THAT(error.message(), Catch::EndsWith(describe(Answer::wrongProof)));
  CHECK(dial.socket.get() == -1);
  CHECK(dialing.isDisconnected());
}

TEST_CASE("a connector that finds something else says that it is not torchwire", "[connector]") {
  const FakeAcceptor fake(GENERATE(Medium::shm, Medium::tcp));
  Dial dial(fake.medium, fake.address(), kKey);
  Visitor dialing = fake.accept();
  const std::string banner = "220 mail.example.com ESMTP, how may we help you?\r\n";
  dialing.send(HandshakeBytes(banner.begin(), banner.end()));
  const Error error = dial.error();
  CHECK(error.code() == ErrorCode::notAdmitted);
  CHECK_THAT(error.message(), Catch::EndsWith(describe(Answer::notUnderstood)));
}

// ---- given up -------------------------------------------------------------------------------------

TEST_CASE("a connector may be destroyed at any stage", "[connector]") {
  const Medium medium = GENERATE(Medium::shm, Medium::tcp);
  {
    const AcceptorUnderTest warmUp(medium);
  }
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
    const FakeAcceptor fake(medium);
    Dial dial(medium, fake.address(), kKey);
    Visitor dialing = fake.accept();
    CHECK(dialing.receive(kGreetingSize).size() == kGreetingSize);
    dial.destroy();
    CHECK(dialing.isDisconnected());
  }
  SECTION("while it waits for the auth result") {
    const FakeAcceptor fake(medium);
    Dial dial(medium, fake.address(), kKey);
    Visitor dialing = fake.accept();
    HandshakeResponder responder(kKey, medium, {fake.address().describe()});
    const HandshakeBytes greeting = dialing.receive(kGreetingSize);
    dialing.send(responder.challenge(greeting, [](uint8_t) { return true; }).send);
    CHECK(responder.check(dialing.receive(kProofSize)) == Answer::welcome);
    dial.destroy();
    CHECK(dialing.isDisconnected());
  }
  CHECK(openFiles() == before);
}

TEST_CASE("a connector that is kept after its end does nothing more", "[connector]") {
  const bool refused = GENERATE(true, false);
  const FakeAcceptor fake(Medium::tcp);
  CallbackLedger ledger;
  CallbackNote& note = ledger.note("the dial");
  const auto loop = Loop::start("connector");
  std::unique_ptr<Connector> connector;
  onLoop(*loop, [&] {
    connector = std::make_unique<Connector>(
        *loop, std::make_shared<const KeyRing>(kKey),
        Connector::Target{fake.address(), Medium::tcp, kAcceptorLane, 0},
        [&](const Error& error, Connector::Reached) { note.add(error); },
        refused ? kPatient : kImpatient);
    connector->start();
  });
  Visitor dialing = fake.accept();
  dialing.receive(kGreetingSize);
  if (refused) {
    dialing.send(HandshakeBytes(kChallengeSize, 'x'));
  }
  REQUIRE(ledger.waitForAll());
  CHECK(note.error());
  dialing.send(HandshakeBytes(2 * kChallengeSize, 'x'));
  dialing.leave();
  // Long enough for another attempt: there is nothing else to wait for, as nothing is to happen.
  pollfd nobody{fake.listening.get(), POLLIN, 0};
  CHECK(poll(&nobody, 1, 100) == 0);
  onLoop(*loop, [&] { connector.reset(); });
}
