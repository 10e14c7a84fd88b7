// Who listens, who dials, and who finds nobody.
#include <catch2/catch.hpp>

#include "test/unit/support/transport_under_test.h"

using namespace torchwire;

TEST_CASE("connections that came before are accepted later", "[transport_listener]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  constexpr size_t kCount = 5;
  std::vector<TransportEnd> dialers;
  for (size_t i = 0; i < kCount; ++i) {
    dialers.push_back(transport.dial());
    dialers.back().write(std::to_string(i));
  }
  REQUIRE(transport.settle());
  std::vector<bool> seen(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const auto accepter = transport.accept();
    REQUIRE(transport.settle());
    REQUIRE(accepter->connection());
    const auto reading = accepter->read();
    REQUIRE(transport.settle());
    seen.at(std::stoul(reading->bytes)) = true;
  }
  CHECK(seen == std::vector<bool>(kCount, true));
}

TEST_CASE("several accepts can be pending", "[transport_listener]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  std::vector<std::shared_ptr<TransportEnd>> accepters;
  std::vector<TransportEnd> dialers;
  for (int i = 0; i < 5; ++i) {
    accepters.push_back(transport.accept());
  }
  for (int i = 0; i < 5; ++i) {
    dialers.push_back(transport.dial());
    dialers.back().write("hello");
  }
  REQUIRE(transport.settle());
  for (const auto& accepter : accepters) {
    const auto reading = accepter->read();
    REQUIRE(transport.settle());
    CHECK(reading->brought("hello"));
  }
}

TEST_CASE("all that was sent before the accept is kept", "[transport_listener]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  TransportEnd dialer = transport.dial();
  std::vector<std::string> messages;
  for (size_t i = 0; i < 200; ++i) {
    messages.push_back(patterned(i * 3, i));
  }
  const CallbackNote& written = dialer.writeAll(messages);
  REQUIRE(transport.waitFor(written));
  const auto accepter = transport.accept();
  REQUIRE(transport.settle());
  accepter->readAll(messages);
  REQUIRE(transport.settle());
}

TEST_CASE("the first message can be empty or large", "[transport_listener]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  const size_t size = GENERATE(0, 1, 4096, 65'536);
  CAPTURE(size);
  TransportEnd dialer = transport.dial();
  dialer.write(patterned(size));
  CallbackNote& accepted = transport.ledger.note("accept");
  const auto accepter = transport.accept(accepted, transport.listener());
  REQUIRE(transport.waitFor(accepted));
  const auto reading = accepter->read();
  REQUIRE(transport.settle());
  CHECK(reading->brought(patterned(size)));
}

TEST_CASE("a dialer that said all and left is still accepted", "[transport_listener]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  TransportEnd dialer = transport.dial();
  dialer.write("hello");
  REQUIRE(transport.settle());
  dialer.drop();
  const auto accepter = transport.accept();
  REQUIRE(transport.settle());
  REQUIRE(accepter->connection());
  const auto hello = accepter->read();
  const auto end = accepter->read();
  REQUIRE(transport.settle());
  CHECK(hello->brought("hello"));
  CHECK(end->failed());
}

TEST_CASE(
    "a listener that is closed fails its accepts, pending and later", "[transport_listener]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  CallbackNote& first = transport.ledger.note("accept");
  CallbackNote& second = transport.ledger.note("accept");
  auto listener = transport.listen();
  transport.accept(first, *listener);
  transport.accept(second, *listener);
  SECTION("by close") {
    listener->close();
    listener->close();
    CallbackNote& late = transport.ledger.note("late accept");
    transport.accept(late, *listener);
    REQUIRE(transport.settle());
    CHECK(late.error());
    CHECK_NOTHROW(listener->addr());
  }
  SECTION("by being dropped") {
    listener.reset();
  }
  SECTION("by the context") {
    transport.server().close();
  }
  REQUIRE(transport.settle());
  CHECK(first.error());
  CHECK(second.error());
}

TEST_CASE("connections outlive the listener that accepted them", "[transport_listener]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  transport.listener().close();
  dialer.write("still here");
  accepter.write("me too");
  const auto there = accepter.read();
  const auto back = dialer.read();
  REQUIRE(transport.settle());
  CHECK(there->brought("still here"));
  CHECK(back->brought("me too"));
}

TEST_CASE("a context can listen again after its listener was closed", "[transport_listener]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  const auto before = transport.listen();
  CallbackNote& closed = transport.ledger.note("accept of the first listener");
  transport.accept(closed, *before);
  before->close();
  REQUIRE(transport.waitFor(closed));
  auto [dialer, accepter] = transport.connect();
  dialer.write("to the second");
  const auto reading = accepter.read();
  REQUIRE(transport.settle());
  CHECK(reading->brought("to the second"));
}

TEST_CASE("a dial finds nobody: its operations fail", "[transport_listener]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto listener = transport.listen();
  const std::string address = listener->addr();
  CallbackNote& closed = transport.ledger.note("accept");
  transport.accept(closed, *listener);
  SECTION("as the listener is closed") {
    listener->close();
    REQUIRE(transport.waitFor(closed));
  }
  SECTION("as the whole server is gone") {
    listener.reset();
    transport.stopServer();
  }
  TransportEnd dialer = transport.dial(address);
  const CallbackNote& written = dialer.write("anybody there?");
  const auto read = dialer.read();
  const auto parcel = dialer.readParcel();
  REQUIRE(transport.settle());
  CHECK(read->failed());
  CHECK(parcel->note.error());
  const CallbackNote& late = dialer.write("still nobody?");
  REQUIRE(transport.settle());
  CHECK(late.error());
  // Written before the dial failed: a transport may have taken it in already.
  CHECK(written.called());
}

TEST_CASE(
    "a listener that is closed turns away those it has not accepted", "[transport_listener]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect(); // so the loops have seen each other
  TransportEnd waiting = transport.dial();
  const CallbackNote& written = waiting.write("hello");
  REQUIRE(transport.waitFor(written));
  const auto reading = waiting.read();
  transport.stopServer();
  REQUIRE(transport.settle());
  CHECK(reading->failed());
}

TEST_CASE("a side can dial itself", "[transport_listener]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  CallbackNote& accepted = transport.ledger.note("accept");
  const auto accepter = transport.accept(accepted, transport.listener());
  TransportEnd dialer(
      transport.ledger, "dialer", transport.server().connect(transport.listener().addr()));
  dialer.write("to myself");
  REQUIRE(transport.settle());
  const auto reading = accepter->read();
  REQUIRE(transport.settle());
  CHECK(reading->brought("to myself"));
}
