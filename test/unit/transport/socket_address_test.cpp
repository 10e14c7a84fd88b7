#include "backend/transport/socket_address.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <stdexcept>
#include <string>

#include "backend/transport/handshake_socket.h"

using namespace torchwire;

namespace {

const std::string kName = "torchwire-socket-address-test-" + std::to_string(getpid());

// A socket that listens there, or on a free port.
Descriptor listenAt(const SocketAddress& address) {
  Descriptor listening(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  REQUIRE(bind(listening.get(), address.get(), address.size()) == 0);
  REQUIRE(listen(listening.get(), 8) == 0);
  return listening;
}

Descriptor connectTo(const SocketAddress& address) {
  Descriptor dialing(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(dialing.get(), address.get(), address.size()) == 0);
  return dialing;
}

bool hasIpv6() {
  const SocketAddress loopback = SocketAddress::tcp("[::1]:0");
  const Descriptor probe(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return probe.get() >= 0 && bind(probe.get(), loopback.get(), loopback.size()) == 0;
}

} // namespace

TEST_CASE("a TCP address is described as it was given", "[socket_address]") {
  const std::string text = GENERATE(
      "127.0.0.1:80", "10.1.2.3:65535", "0.0.0.0:1", "[::1]:80", "[2001:db8::1]:443", "[::]:1");
  CAPTURE(text);
  const SocketAddress address = SocketAddress::tcp(text);
  CHECK(address.describe() == text);
  CHECK(SocketAddress::tcp(address.describe()).describe() == text);
}

TEST_CASE("a TCP address has a family, a host and a port", "[socket_address]") {
  const SocketAddress v4 = SocketAddress::tcp("127.0.0.1:80");
  CHECK(v4.family() == AF_INET);
  CHECK(v4.size() == sizeof(sockaddr_in));
  CHECK(v4.host() == "127.0.0.1");
  CHECK(v4.port() == 80);
  const SocketAddress v6 = SocketAddress::tcp("[::1]:8080");
  CHECK(v6.family() == AF_INET6);
  CHECK(v6.size() == sizeof(sockaddr_in6));
  CHECK(v6.host() == "::1");
  CHECK(v6.port() == 8080);
}

TEST_CASE("a TCP address without a port has port 0", "[socket_address]") {
  CHECK(SocketAddress::tcp("127.0.0.1").port() == 0);
  CHECK(SocketAddress::tcp("127.0.0.1").describe() == "127.0.0.1:0");
  CHECK(SocketAddress::tcp("::1").port() == 0);
  CHECK(SocketAddress::tcp("::1").describe() == "[::1]:0");
  CHECK(SocketAddress::tcp("[::1]").describe() == "[::1]:0");
}

TEST_CASE("a link-local address keeps its interface", "[socket_address]") {
  const SocketAddress address = SocketAddress::tcp("fe80::1%lo");
  CHECK(reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_scope_id != 0);
  CHECK(address.host() == "fe80::1%lo");
  CHECK(SocketAddress::tcp("[fe80::1%lo]:80").describe() == "[fe80::1%lo]:80");
}

TEST_CASE("what is not a numeric TCP address is refused", "[socket_address]") {
  const std::string text = GENERATE(
      "", ":80", "localhost", "localhost:80", "example.com:80", "256.0.0.1:80", "1.2.3.4.5:80",
      "[]:80", "[::1", "[::1]80", "[::g]:80", "127.0.0.1:port", "127.0.0.1:-1", "127.0.0.1:65536",
      "127.0.0.1:99999999999999999999", "[::1]:65536", "1:2:3:4:5:6:7:8:9",
      "fe80::1%no-such-interface", " 127.0.0.1:80", "127.0.0.1/lane", "\xff\xfe:80");
  CAPTURE(text);
  CHECK_THROWS_AS(SocketAddress::tcp(text), std::runtime_error);
}

TEST_CASE("a TCP address that is refused is quoted", "[socket_address]") {
  CHECK_THROWS_WITH(
      SocketAddress::tcp("localhost:80"), "'localhost:80' is not a numeric IP address");
}

TEST_CASE("an abstract Unix address is described by its name", "[socket_address]") {
  const SocketAddress address = SocketAddress::abstractUnix("some name");
  CHECK(address.family() == AF_UNIX);
  CHECK(address.describe() == "some name");
  CHECK(address.host() == "some name");
  CHECK(address.port() == 0);
}

TEST_CASE(
    "an abstract name may be as long as the system allows, and no longer", "[socket_address]") {
  const std::string longest(107, 'x');
  CHECK(SocketAddress::abstractUnix(longest).describe() == longest);
  CHECK_THROWS_WITH(
      SocketAddress::abstractUnix(longest + "x"),
      "'" + longest + "x' cannot be the name of an abstract Unix socket");
  CHECK_THROWS_AS(SocketAddress::abstractUnix(""), std::runtime_error);
}

TEST_CASE("a default address is nowhere", "[socket_address]") {
  const SocketAddress nowhere;
  CHECK(nowhere.family() == AF_UNSPEC);
  CHECK(nowhere.host().empty());
  CHECK(nowhere.port() == 0);
}

TEST_CASE("a listening TCP socket's address is the one to dial", "[socket_address]") {
  const std::string text = GENERATE("127.0.0.1:0", "[::1]:0");
  if (text.front() == '[' && !hasIpv6()) {
    WARN("this system has no IPv6");
    return;
  }
  const Descriptor listening = listenAt(SocketAddress::tcp(text));
  const SocketAddress bound = SocketAddress::ofSocket(listening.get());
  REQUIRE(bound.port() != 0);
  CHECK(bound.host() == SocketAddress::tcp(text).host());
  const Descriptor dialing = connectTo(SocketAddress::tcp(bound.describe()));
  SocketAddress from;
  const Descriptor accepted(from.accept(listening.get()));
  REQUIRE(accepted.get() >= 0);
  CHECK(from.describe() == SocketAddress::ofSocket(dialing.get()).describe());
}

TEST_CASE("a name in the abstract namespace may hold any bytes, zeros too", "[socket_address]") {
  const std::string name = kName + std::string("\0\xff/x", 4);
  const Descriptor listening = listenAt(SocketAddress::abstractUnix(name));
  CHECK(SocketAddress::ofSocket(listening.get()).describe() == name);
  const Descriptor dialing = connectTo(SocketAddress::abstractUnix(name));
  SocketAddress from;
  const Descriptor accepted(from.accept(listening.get()));
  REQUIRE(accepted.get() >= 0);
  CHECK(from.describe().empty()); // who dials has no name
}

TEST_CASE("an abstract name ends with its socket, and no file is left", "[socket_address]") {
  const SocketAddress address = SocketAddress::abstractUnix(kName);
  {
    const Descriptor listening = listenAt(address);
  }
  CHECK(access(kName.c_str(), F_OK) == -1);
  const Descriptor listening = listenAt(address); // it is free again
  CHECK(listening.get() >= 0);
}

TEST_CASE("names of which one begins like the other are two", "[socket_address]") {
  const Descriptor first = listenAt(SocketAddress::abstractUnix(kName));
  const Descriptor second = listenAt(SocketAddress::abstractUnix(kName + "x"));
  CHECK(SocketAddress::ofSocket(first.get()).describe() == kName);
  CHECK(SocketAddress::ofSocket(second.get()).describe() == kName + "x");
}

TEST_CASE("accepting where nobody dials says so", "[socket_address]") {
  const Descriptor listening = listenAt(SocketAddress::abstractUnix(kName));
  SocketAddress from;
  CHECK(from.accept(listening.get()) == -1);
  CHECK((errno == EAGAIN || errno == EWOULDBLOCK));
}

TEST_CASE("an accepted socket does not block, and is not passed on", "[socket_address]") {
  const SocketAddress address = SocketAddress::abstractUnix(kName);
  const Descriptor listening = listenAt(address);
  const Descriptor dialing = connectTo(address);
  SocketAddress from;
  const Descriptor accepted(from.accept(listening.get()));
  char byte = 0;
  CHECK(recv(accepted.get(), &byte, 1, 0) == -1);
  CHECK(errno == EAGAIN);
  CHECK((fcntl(accepted.get(), F_GETFD) & FD_CLOEXEC) != 0);
}
