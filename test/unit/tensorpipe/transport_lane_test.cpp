// What torchwire's transports share: an endpoint and its lanes, a loop.
#include <catch2/catch.hpp>
#include <optional>
#include <stdexcept>

#include "backend/tensorpipe/shm_transport.h"
#include "backend/tensorpipe/tcp_transport.h"
#include "backend/transport/loop.h"
#include "test/unit/support/transport_under_test.h"

using namespace torchwire;

namespace {

std::shared_ptr<const KeyRing> keys() {
  return std::make_shared<const KeyRing>(GroupKey(7, kGroupSecret));
}

std::shared_ptr<Endpoint> openEndpoint(const std::string& bind, const std::string& advertise = "") {
  return openTcpEndpoint(
      Loop::start("endpoint"), keys(), {.bindAddress = bind, .advertiseAddress = advertise});
}

// Both sides on one endpoint.
TransportKind onLane(const std::shared_ptr<Endpoint>& endpoint, uint8_t lane) {
  const auto make = [endpoint, lane](const std::string&) {
    return makeTcpTransport(endpoint, lane);
  };
  return {
      .name = "wire_tcp's lane " + std::to_string(lane), .makeContext = make, .listenAddress = ""};
}

// Both sides on one loop.
std::vector<TransportKind> kindsOnOneLoop() {
  const auto loop = Loop::start("both");
  return {
      {.name = "wire_shm on one loop",
       .makeContext = [loop](const std::string&) { return makeShmTransport(loop, keys()); },
       .listenAddress = ""},
      {.name = "wire_tcp on one loop",
       .makeContext =
           [loop](const std::string&) {
             const TcpOptions options{.bindAddress = "127.0.0.1", .advertiseAddress = ""};
             return makeTcpTransport(openTcpEndpoint(loop, keys(), options), 0);
           },
       .listenAddress = ""}};
}

void expectTraffic(TransportUnderTest& transport, ConnectedEnds& ends) {
  const std::string there = patterned(5'000'000, 1);
  const std::string back = patterned(5'000'000, 2);
  ends.dialer.write(there);
  ends.accepter.write(back);
  const auto arrived = ends.accepter.read();
  const auto returned = ends.dialer.read();
  REQUIRE(transport.settle());
  CHECK(arrived->brought(there));
  CHECK(returned->brought(back));
}

} // namespace

TEST_CASE("both sides can live on one loop", "[transport_lane]") {
  TransportUnderTest transport(GENERATE(from_range(kindsOnOneLoop())));
  std::vector<ConnectedEnds> all = transport.connect(3);
  for (ConnectedEnds& ends : all) {
    expectTraffic(transport, ends);
  }
  const auto lost = all[0].accepter.read();
  all[0].dialer.drop();
  REQUIRE(transport.settle());
  CHECK(lost->failed());
}

TEST_CASE("the lanes of an endpoint are told apart", "[transport_lane]") {
  const auto endpoint = openEndpoint("127.0.0.1");
  TransportUnderTest one(onLane(endpoint, 0));
  TransportUnderTest other(onLane(endpoint, 255));
  CHECK(one.listener().addr() != other.listener().addr());
  auto ofOne = one.connect();
  auto ofOther = other.connect();
  expectTraffic(one, ofOne);
  expectTraffic(other, ofOther);
}

TEST_CASE("a lane that ends leaves the others alone", "[transport_lane]") {
  const auto endpoint = openEndpoint("127.0.0.1");
  TransportUnderTest staying(onLane(endpoint, 0));
  auto ends = staying.connect();
  {
    TransportUnderTest leaving(onLane(endpoint, 1));
    auto others = leaving.connect();
    expectTraffic(leaving, others);
  }
  expectTraffic(staying, ends);
  auto more = staying.connect();
  expectTraffic(staying, more);
}

TEST_CASE("an endpoint can be bound to what it is told", "[transport_lane]") {
  const std::string bind =
      GENERATE(as<std::string>(), "127.0.0.1", "127.0.0.1:0", "127.0.0.2", "::1");
  CAPTURE(bind);
  std::shared_ptr<Endpoint> endpoint;
  try {
    endpoint = openEndpoint(bind);
  } catch (const std::runtime_error& e) {
    REQUIRE(bind == "::1"); // which not every machine has
    WARN(e.what());
    return;
  }
  TransportUnderTest transport(onLane(endpoint, 0));
  auto ends = transport.connect();
  expectTraffic(transport, ends);
}

TEST_CASE("others are told the address to be advertised", "[transport_lane]") {
  const auto endpoint = openEndpoint("0.0.0.0", "127.0.0.2");
  TransportUnderTest transport(onLane(endpoint, 0));
  CHECK(transport.listener().addr().rfind("127.0.0.2:", 0) == 0);
  auto ends = transport.connect();
  expectTraffic(transport, ends);
}

TEST_CASE("a port that cannot be had is refused in words", "[transport_lane]") {
  const auto taken = openEndpoint("127.0.0.1");
  TransportUnderTest transport(onLane(taken, 0));
  const std::string lane = transport.listener().addr();
  const std::string address = lane.substr(0, lane.rfind('/'));
  for (const std::string& bind : {address, std::string("nonsense"), std::string("192.0.2.1")}) {
    CAPTURE(bind);
    CHECK_THROWS_AS(openEndpoint(bind), std::runtime_error);
  }
  auto ends = transport.connect();
  expectTraffic(transport, ends);
}

TEST_CASE("what a context stands on may be forgotten before it", "[transport_lane]") {
  std::optional<TransportKind> kind = GENERATE(from_range(kindsOnOneLoop()));
  TransportUnderTest transport(*kind);
  kind.reset();
  auto ends = transport.connect();
  expectTraffic(transport, ends);
}
