// What is written at one end of a connection arrives at the other: once, whole and in order.
#include <catch2/catch.hpp>

#include "test/unit/support/transport_under_test.h"

using namespace torchwire;

TEST_CASE("messages arrive in order in both directions", "[transport_connection]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  for (const char* text : {"1", "22", "333"}) {
    dialer.write(text);
    accepter.write(text);
  }
  for (const char* text : {"1", "22", "333"}) {
    const auto there = accepter.read();
    const auto back = dialer.read();
    REQUIRE(transport.settle());
    CHECK(there->brought(text));
    CHECK(back->brought(text));
  }
}

TEST_CASE("a read may come before the write", "[transport_connection]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const auto first = accepter.read();
  const auto second = accepter.readInto(6);
  dialer.write("first");
  dialer.write("second");
  REQUIRE(transport.settle());
  CHECK(first->brought("first"));
  CHECK(second->brought("second"));
}

TEST_CASE("a message is read into the caller's memory", "[transport_connection]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  for (const size_t size : {1, 4096, 3'000'001}) {
    CAPTURE(size);
    dialer.write(patterned(size));
    const auto reading = accepter.readInto(size);
    REQUIRE(transport.settle());
    CHECK(reading->brought(patterned(size)));
  }
}

TEST_CASE("an empty message is a message", "[transport_connection]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  for (int i = 0; i < 3; ++i) {
    dialer.write("");
    dialer.write("between");
  }
  for (int i = 0; i < 3; ++i) {
    const auto empty = i == 1 ? accepter.readInto(0) : accepter.read();
    const auto between = accepter.read();
    REQUIRE(transport.settle());
    CHECK(empty->brought(""));
    CHECK(between->brought("between"));
  }
}

TEST_CASE("parcels of libnop's arrive, small and large", "[transport_connection]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const std::vector<Parcel> parcels{
      {},
      {.label = "small", .number = 1, .items = {1, 2, 3}},
      {.label = patterned(1 << 20), .number = ~0ull, .items = {}},
      {.label = "many", .number = 3, .items = std::vector<uint32_t>(100'000, 0xabcdef)},
      {.label = patterned(5'000'000), .number = 4, .items = {7}}};
  for (const Parcel& parcel : parcels) {
    dialer.write(parcel);
    const auto reading = accepter.readParcel();
    REQUIRE(transport.settle());
    CHECK(reading->note.succeeded());
    CHECK((reading->parcel == parcel)); // in parentheses: not to be printed
  }
}

TEST_CASE("parcels and plain messages take turns", "[transport_connection]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const Parcel parcel{.label = "between", .number = 5, .items = {6}};
  dialer.write("before");
  dialer.write(parcel);
  dialer.write("after");
  const auto before = accepter.read();
  const auto between = accepter.readParcel();
  const auto after = accepter.readInto(5);
  REQUIRE(transport.settle());
  CHECK(before->brought("before"));
  CHECK(between->parcel == parcel);
  CHECK(after->brought("after"));
}

TEST_CASE("a parcel can be read as the bytes that libnop makes of it", "[transport_connection]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const Parcel parcel{.label = patterned(300), .number = 5, .items = {6, 7, 8}};
  dialer.write(parcel);
  const auto bytes = accepter.read();
  REQUIRE(transport.settle());
  accepter.write(bytes->bytes);
  const auto returned = dialer.readParcel();
  REQUIRE(transport.settle());
  CHECK((returned->parcel == parcel));
}

TEST_CASE("a name for log lines changes nothing", "[transport_connection]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  transport.client().setId("client");
  transport.listener().setId("listener");
  auto [dialer, accepter] = transport.connect();
  dialer.connection()->setId("dialer");
  dialer.write("named");
  const auto reading = accepter.read();
  REQUIRE(transport.settle());
  CHECK(reading->brought("named"));
}
