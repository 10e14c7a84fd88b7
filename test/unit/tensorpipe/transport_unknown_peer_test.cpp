// What torchwire's own transports promise beyond TensorPipe's: unknown peers and silence do no harm.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "test/unit/support/transport_under_test.h"

using namespace torchwire;

namespace {

// A dial that the other side turns away.
void expectTurnedAway(TransportUnderTest& transport, TransportEnd& dialer) {
  const CallbackNote& written = dialer.write("hello");
  const auto reading = dialer.read();
  REQUIRE(transport.waitFor(written));
  REQUIRE(transport.waitFor(reading->note));
  CHECK(reading->failed());
}

// The next that is accepted is this one.
void expectAccepted(TransportUnderTest& transport, TransportEnd& dialer) {
  CallbackNote& accepted = transport.ledger.note("accept");
  const auto accepter = transport.accept(accepted, transport.listener());
  dialer.write("one of us");
  REQUIRE(transport.waitFor(accepted));
  const auto reading = accepter->read();
  REQUIRE(transport.waitFor(reading->note));
  CHECK(reading->brought("one of us"));
}

} // namespace

TEST_CASE("what is no address fails through the callbacks", "[transport_unknown_peer]") {
  TransportUnderTest transport(GENERATE(from_range(ownTransportKinds())));
  const std::string address = GENERATE(
      as<std::string>(), "", "garbage", ":", "/", "host:port", "::::::::::", "127.0.0.1",
      "127.0.0.1:", "127.0.0.1:1", "127.0.0.1:1/0", "127.0.0.1:0/0", "127.0.0.1:-1/0",
      "127.0.0.1:65536/0", "127.0.0.1:99999999999999999999/0", "127.0.0.1:1/256", "127.0.0.1:1/x",
      "[::1/0", "[]:1/0", std::string(100'000, 'x'), std::string("\0\0\0", 3),
      std::string("\xff\xfe\n", 3));
  CAPTURE(address.substr(0, 100));
  TransportEnd dialer = transport.dial(address);
  const auto read = dialer.read();
  const auto readInto = dialer.readInto(10);
  const CallbackNote& written = dialer.write("anybody there?");
  REQUIRE(transport.settle());
  CHECK(read->failed());
  CHECK(readInto->failed());
  CHECK(written.error());
}

TEST_CASE("a lane that nobody listens on turns dialers away", "[transport_unknown_peer]") {
  TransportUnderTest transport(GENERATE(from_range(ownTransportKinds())));
  std::string address = transport.listener().addr();
  if (const size_t slash = address.rfind('/'); slash != std::string::npos) {
    address.resize(slash);
  }
  TransportEnd dialer = transport.dial(address + "/77");
  expectTurnedAway(transport, dialer);
}

TEST_CASE("who does not know the secret is turned away", "[transport_unknown_peer]") {
  const TransportKind kind = GENERATE(from_range(ownTransportKinds()));
  TransportUnderTest transport(kind);
  const auto unknown = kind.makeContext("another secret of enough bytes");
  const std::string address = transport.listener().addr();
  for (int i = 0; i < 3; ++i) {
    TransportEnd dialer(transport.ledger, "unknown peer", unknown->connect(address));
    expectTurnedAway(transport, dialer);
  }
  TransportEnd member = transport.dial();
  expectAccepted(transport, member);
  unknown->join();
}

TEST_CASE("a listener that does not know the secret is not spoken to", "[transport_unknown_peer]") {
  const TransportKind kind = GENERATE(from_range(ownTransportKinds()));
  TransportUnderTest transport(kind);
  const auto unknown = kind.makeContext("another secret of enough bytes");
  const auto listener = unknown->listen(kind.listenAddress);
  CallbackNote& accepted = transport.ledger.note("accept");
  transport.accept(accepted, *listener);
  TransportEnd dialer = transport.dial(listener->addr());
  expectTurnedAway(transport, dialer);
  CHECK_FALSE(accepted.called());
  unknown->join();
  CHECK(accepted.error());
}

TEST_CASE("a dialer without a word is not shown", "[transport_unknown_peer]") {
  TransportUnderTest transport(GENERATE(from_range(ownTransportKinds())));
  TransportEnd silent = transport.dial(transport.listener().addr(), "silent dialer");
  TransportEnd speaking = transport.dial();
  SECTION("while it is silent") {
    expectAccepted(transport, speaking);
    silent.write("after all");
    const auto accepter = transport.accept();
    REQUIRE(transport.settle());
    const auto reading = accepter->read();
    REQUIRE(transport.settle());
    CHECK(reading->brought("after all"));
  }
  SECTION("when it left") {
    silent.drop();
    expectAccepted(transport, speaking);
  }
}

TEST_CASE("a first message that is no greeting is turned away", "[transport_unknown_peer]") {
  TransportUnderTest transport(GENERATE(from_range(ownTransportKinds())));
  TransportEnd dialer = transport.dial();
  const CallbackNote& written = dialer.write(patterned(65'537));
  const auto reading = dialer.read();
  REQUIRE(transport.waitFor(written));
  REQUIRE(transport.waitFor(reading->note));
  CHECK(reading->failed());
  TransportEnd other = transport.dial();
  expectAccepted(transport, other);
}

TEST_CASE(
    "a message of another length than its buffer breaks the connection",
    "[transport_unknown_peer]") {
  TransportUnderTest transport(GENERATE(from_range(ownTransportKinds())));
  const size_t sent = GENERATE(0, 9, 11, 100'000);
  const bool first = GENERATE(true, false);
  CAPTURE(sent, first);
  std::shared_ptr<TransportEnd> accepter;
  TransportEnd dialer;
  if (first) {
    dialer = transport.dial();
    dialer.write(patterned(std::min<size_t>(sent, 60'000)));
    CallbackNote& accepted = transport.ledger.note("accept");
    accepter = transport.accept(accepted, transport.listener());
    REQUIRE(transport.waitFor(accepted));
  } else {
    ConnectedEnds ends = transport.connect();
    dialer = ends.dialer;
    accepter = std::make_shared<TransportEnd>(ends.accepter);
    dialer.write(patterned(sent));
  }
  const auto reading = accepter->readInto(10); // ASan looks after its end
  const auto behind = accepter->read();
  const auto other = dialer.read();
  REQUIRE(transport.settle());
  CHECK(reading->failed());
  CHECK(behind->failed());
  CHECK(other->failed());
}

TEST_CASE("bytes that are no parcel break the connection", "[transport_unknown_peer]") {
  TransportUnderTest transport(GENERATE(from_range(ownTransportKinds())));
  auto [dialer, accepter] = transport.connect();
  // Of some there are too few bytes, which TensorPipe's reader does not notice.
  dialer.write(GENERATE(
      as<std::string>(), "no parcel", std::string(1000, '\xba'), "\xb9", "\xb9\x02\x01",
      "\xbd\x05"
      "ab",
      "\x83\x01", ""));
  const auto parcel = accepter.readParcel();
  const auto behind = accepter.read();
  const auto other = dialer.read();
  REQUIRE(transport.settle());
  CHECK(parcel->note.error());
  CHECK(behind->failed());
  CHECK(other->failed());
}

TEST_CASE("not even a context that was joined calls back inside", "[transport_unknown_peer]") {
  std::atomic<bool> inside{false};
  TransportUnderTest transport(GENERATE(from_range(ownTransportKinds())));
  auto [dialer, accepter] = transport.connect();
  TpListener& listener = transport.listener();
  transport.server().join();
  CallbackNote& read = transport.ledger.note("read");
  CallbackNote& accepted = transport.ledger.note("accept");
  const auto caller = std::this_thread::get_id();
  accepter.connection()->read([&](const TpError& error, const void*, size_t) {
    inside = inside || std::this_thread::get_id() == caller;
    noting(read)(error);
  });
  listener.accept([&](const TpError& error, std::shared_ptr<TpConnection>) {
    inside = inside || std::this_thread::get_id() == caller;
    noting(accepted)(error);
  });
  REQUIRE(transport.settle());
  CHECK_FALSE(inside);
}
