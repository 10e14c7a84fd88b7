// Whatever ends a connection, in whatever state: each callback is called once, with an error.
#include <catch2/catch.hpp>

#include "test/unit/support/transport_under_test.h"

using namespace torchwire;

namespace {

// More than any transport takes in when nobody reads.
constexpr size_t kTooMuch = 64 << 20;

// Whether all that is done with this connection from now on fails.
bool isBroken(TransportUnderTest& transport, TransportEnd& end) {
  const auto read = end.read();
  const auto readInto = end.readInto(10);
  const auto readParcel = end.readParcel();
  const CallbackNote& written = end.write("too late");
  const CallbackNote& parcelWritten = end.write(Parcel());
  return transport.settle() && read->failed() && readInto->failed() && readParcel->note.error() &&
      written.error() && parcelWritten.error();
}

} // namespace

TEST_CASE("a connection that is closed fails what is pending on both sides", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  auto [closing, other] =
      GENERATE(true, false) ? std::tie(dialer, accepter) : std::tie(accepter, dialer);
  const auto here = closing.read();
  const auto hereInto = closing.readInto(100);
  const auto hereParcel = closing.readParcel();
  const auto there = other.read();
  closing.close();
  REQUIRE(transport.settle());
  CHECK(here->failed());
  CHECK(hereInto->failed());
  CHECK(hereParcel->note.error());
  CHECK(there->failed());
  CHECK(isBroken(transport, closing));
  CHECK(isBroken(transport, other));
}

TEST_CASE("closing twice is closing once", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const auto reading = dialer.read();
  dialer.close();
  dialer.close();
  REQUIRE(transport.settle());
  dialer.close();
  CHECK(isBroken(transport, dialer));
}

TEST_CASE("a connection that is dropped is closed", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const auto here = dialer.read();
  const auto there = accepter.read();
  dialer.drop();
  REQUIRE(transport.settle());
  CHECK(here->failed());
  CHECK(there->failed());
}

TEST_CASE("closing fails the writes that nobody reads", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const CallbackNote& huge = dialer.write(std::string(kTooMuch, 'x'));
  const CallbackNote& small = dialer.write("behind it");
  const CallbackNote& parcel = dialer.write(Parcel());
  SECTION("by the writer") {
    dialer.close();
  }
  SECTION("by the writer, who drops it") {
    dialer.drop();
  }
  SECTION("by the reader") {
    accepter.close();
  }
  SECTION("by the reader, who has begun to read") {
    const auto reading = accepter.read();
    accepter.close();
    REQUIRE(transport.settle());
    CHECK(reading->failed());
  }
  REQUIRE(transport.settle());
  CHECK(huge.error());
  CHECK(small.error());
  CHECK(parcel.error());
}

TEST_CASE("what was written before the close can still be read", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  auto [closing, other] =
      GENERATE(true, false) ? std::tie(dialer, accepter) : std::tie(accepter, dialer);
  const size_t size = GENERATE(1, 1000, 50'000);
  closing.write(patterned(size, 1));
  closing.write(patterned(size, 2));
  REQUIRE(transport.settle());
  const bool waits = GENERATE(true, false);
  const auto early = waits ? other.read() : nullptr;
  closing.close();
  const auto first = waits ? early : other.read();
  const auto second = other.readInto(size);
  const auto end = other.read();
  REQUIRE(transport.settle());
  CHECK(first->brought(patterned(size, 1)));
  CHECK(second->brought(patterned(size, 2)));
  CHECK(end->failed());
}

TEST_CASE("what was written before can be read long after the close", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  auto [witness, witnessAccepter] = transport.connect();
  dialer.write("last words");
  REQUIRE(transport.settle());
  dialer.drop();
  // The server's loop has surely heard of the close when it has answered twice on another one.
  for (int i = 0; i < 2; ++i) {
    witness.write("has it closed?");
    const auto question = witnessAccepter.read();
    REQUIRE(transport.settle());
  }
  const auto words = accepter.read();
  const auto end = accepter.read();
  REQUIRE(transport.settle());
  CHECK(words->brought("last words"));
  CHECK(end->failed());
}

TEST_CASE("a message that broke off in the middle is not delivered", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const CallbackNote& whole = dialer.write("whole");
  const CallbackNote& broken = dialer.write(std::string(kTooMuch, 'x'));
  REQUIRE(transport.waitFor(whole));
  const auto first = accepter.read();
  REQUIRE(transport.waitFor(first->note));
  dialer.close();
  const auto second = GENERATE(true, false) ? accepter.read() : accepter.readInto(kTooMuch);
  REQUIRE(transport.settle());
  CHECK(first->brought("whole"));
  CHECK(broken.error());
  CHECK(second->failed());
}

TEST_CASE("writes to a peer that is gone fail sooner or later", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  accepter.close();
  CHECK(transport.waitUntil([&transport, &end = dialer] {
    const CallbackNote& written = end.write(patterned(100'000));
    return transport.waitFor(written) && written.error();
  }));
  CHECK(isBroken(transport, dialer));
}

TEST_CASE("a connection can be closed before it stands", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  TransportEnd dialer = transport.dial();
  const auto read = dialer.read();
  const CallbackNote& huge = dialer.write(std::string(kTooMuch, 'x'));
  SECTION("by close") {
    dialer.close();
    const auto late = dialer.read();
    REQUIRE(transport.settle());
    CHECK(late->failed());
  }
  SECTION("by being dropped") {
    dialer.drop();
  }
  SECTION("by the context") {
    transport.client().close();
  }
  REQUIRE(transport.settle());
  CHECK(read->failed());
  CHECK(huge.error());
}

TEST_CASE("connections that are given up at once disturb no others", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  for (int i = 0; i < 50; ++i) {
    TransportEnd hasty = transport.dial(transport.listener().addr(), "hasty dialer");
    CallbackNote& read = hasty.read()->note;
    hasty.close();
    REQUIRE(transport.waitFor(read));
    CHECK(read.error());
  }
  dialer.write("still here");
  const auto reading = accepter.read();
  REQUIRE(transport.settle());
  CHECK(reading->brought("still here"));
}

TEST_CASE("the end of one connection leaves the others alone", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  std::vector<ConnectedEnds> all = transport.connect(5);
  const auto lost = all[2].accepter.read();
  all[2].dialer.close();
  REQUIRE(transport.settle());
  CHECK(lost->failed());
  for (const size_t i : {0, 1, 3, 4}) {
    all[i].dialer.write(std::to_string(i));
    const auto reading = all[i].accepter.read();
    REQUIRE(transport.settle());
    CHECK(reading->brought(std::to_string(i)));
  }
}

TEST_CASE("a peer that is gone altogether ends its connections", "[transport_close]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const auto here = dialer.read();
  const auto there = accepter.read();
  const CallbackNote& written = dialer.write(std::string(kTooMuch, 'x'));
  transport.stopServer();
  CHECK(there->failed());
  REQUIRE(transport.settle());
  CHECK(here->failed());
  CHECK(written.error());
}
