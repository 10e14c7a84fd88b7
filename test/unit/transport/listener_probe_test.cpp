#include "backend/transport/listener_probe.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <string>

#include "backend/transport/handshake_socket.h"
#include "backend/transport/socket_address.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

// Bound, but nobody listens yet.
Descriptor bound(const std::string& address) {
  const SocketAddress wanted = SocketAddress::tcp(address);
  Descriptor socket(::socket(wanted.family(), SOCK_STREAM, 0));
  REQUIRE(::bind(socket.get(), wanted.get(), wanted.size()) == 0);
  return socket;
}

} // namespace

TEST_CASE(
    "a port at which nobody listens is told from one at which somebody does", "[listener_probe]") {
  const Descriptor socket = bound("127.0.0.1:0");
  const std::string address = SocketAddress::ofSocket(socket.get()).describe();
  CHECK(nobodyListensAt(address, milliseconds(0)));
  CHECK(nobodyListensAt(address, milliseconds(60)));
  REQUIRE(::listen(socket.get(), 1) == 0);
  CHECK_FALSE(nobodyListensAt(address, milliseconds(0)));
}

TEST_CASE("what is no address is an error", "[listener_probe]") {
  CHECK_THROWS_AS(nobodyListensAt("here"), std::runtime_error);
}
