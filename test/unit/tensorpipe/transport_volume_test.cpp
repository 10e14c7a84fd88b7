// Huge messages, very many, and the sizes at which a ring comes around.
#include <catch2/catch.hpp>

#include "test/unit/support/transport_under_test.h"

using namespace torchwire;

namespace {

constexpr size_t kMiB = 1 << 20;

std::vector<std::string> messages(size_t count, size_t shortest, size_t longest) {
  std::vector<std::string> all;
  for (size_t i = 0; i < count; ++i) {
    all.push_back(patterned(shortest + i * 7919 % (longest - shortest + 1), i));
  }
  return all;
}

} // namespace

TEST_CASE("a message of 64 MiB arrives whole", "[transport_volume]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  const bool readFirst = GENERATE(true, false);
  CAPTURE(readFirst);
  auto [dialer, accepter] = transport.connect();
  const std::string bytes = patterned(64 * kMiB);
  const auto early = readFirst ? accepter.readInto(bytes.size()) : nullptr;
  dialer.write(bytes);
  const auto reading = readFirst ? early : accepter.read();
  REQUIRE(transport.settle());
  CHECK(reading->brought(bytes));
}

TEST_CASE("both ends can write much at once before either reads", "[transport_volume]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const std::string there = patterned(16 * kMiB, 1);
  const std::string back = patterned(16 * kMiB, 2);
  dialer.write(there);
  accepter.write(back);
  const auto arrived = accepter.read();
  const auto returned = dialer.readInto(back.size());
  REQUIRE(transport.settle());
  CHECK(arrived->brought(there));
  CHECK(returned->brought(back));
}

TEST_CASE("messages of about every power of two arrive", "[transport_volume]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  std::vector<std::string> all;
  for (size_t power = 0; power <= 22; ++power) {
    for (int near = -17; near <= 17; ++near) {
      if (power < 18 || near % 8 == 0 || near == 1 || near == -1) {
        const auto size = static_cast<int64_t>(1) << power;
        all.push_back(patterned(std::max<int64_t>(size + near, 0), power));
      }
    }
  }
  dialer.writeAll(all);
  accepter.readAll(all);
  REQUIRE(transport.settle());
}

TEST_CASE("sizes that do not divide a ring come around it many times", "[transport_volume]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const size_t size = GENERATE(4093, 65'521, 1'048'573);
  CAPTURE(size);
  const std::vector<std::string> all = messages(16 * kMiB / size, size, size);
  dialer.writeAll(all);
  accepter.readAll(all);
  REQUIRE(transport.settle());
}

TEST_CASE("many small messages arrive in order", "[transport_volume]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const std::vector<std::string> all = messages(10'000, 1, 300);
  SECTION("read after they were written") {
    const CallbackNote& written = dialer.writeAll(messages(1000, 1, 30));
    REQUIRE(transport.waitFor(written));
    accepter.readAll(messages(1000, 1, 30));
  }
  SECTION("read while they are written") {
    dialer.writeAll(all);
    accepter.readAll(all);
  }
  SECTION("awaited before they are written") {
    accepter.readAll(all);
    dialer.writeAll(all);
  }
  SECTION("in both directions at once") {
    dialer.writeAll(all);
    accepter.writeAll(all);
    accepter.readAll(all);
    dialer.readAll(all);
  }
  REQUIRE(transport.settle());
}

TEST_CASE("messages go back and forth", "[transport_volume]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  for (const std::string& message : messages(500, 1, 20'000)) {
    dialer.write(message);
    const auto there = accepter.read();
    REQUIRE(transport.waitFor(there->note));
    accepter.write(there->bytes);
    const auto back = dialer.read();
    REQUIRE(transport.waitFor(back->note));
    REQUIRE(back->brought(message));
  }
  REQUIRE(transport.settle());
}

TEST_CASE("small messages pass beside a huge one on another connection", "[transport_volume]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [slow, slowAccepter] = transport.connect();
  auto [quick, quickAccepter] = transport.connect();
  CallbackNote& huge = slow.write(patterned(64 * kMiB)); // nobody reads it yet
  quick.writeAll(messages(100, 1, 5000));
  REQUIRE(transport.waitFor(quickAccepter.readAll(messages(100, 1, 5000))));
  CHECK_FALSE(huge.called());
  const auto reading = slowAccepter.read();
  REQUIRE(transport.settle());
  CHECK(reading->brought(patterned(64 * kMiB)));
}
