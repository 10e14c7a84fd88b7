#include "backend/base/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <stdexcept>

using namespace torchwire;

namespace {

// A TCP port of the loopback interface that is taken as long as this lives.
class TakenPort {
 public:
  TakenPort() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(own);
    auto* address = reinterpret_cast<sockaddr*>(&own);
    REQUIRE(::bind(fd_, address, length) == 0);
    REQUIRE(::listen(fd_, 1) == 0);
    REQUIRE(::getsockname(fd_, address, &length) == 0);
    port_ = ntohs(own.sin_port);
  }
  ~TakenPort() {
    ::close(fd_);
  }
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;

  std::string address() const {
    return "127.0.0.1:" + std::to_string(port_);
  }

 private:
  const int fd_;
  uint16_t port_ = 0;
};

// Sets or unsets an environment variable for a scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) {
      before_ = before;
    }
    set(value);
  }
  ~Variable() {
    set(before_ ? before_->c_str() : nullptr);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) const {
    value != nullptr ? ::setenv(name_, value, 1) : ::unsetenv(name_);
  }

  const char* const name_;
  std::optional<std::string> before_;
};

} // namespace

TEST_CASE("host and port of an address come apart", "[address]") {
  CHECK(hostOf("127.0.0.1:80") == "127.0.0.1");
  CHECK(portOf("127.0.0.1:80") == 80);
  CHECK(hostOf("[::1]:65535") == "::1");
  CHECK(portOf("[::1]:65535") == 65535);
  CHECK(hostOf("some.host:1") == "some.host");
  CHECK(portOf("some.host:1") == 1);
}

TEST_CASE("an address without a port is all host", "[address]") {
  for (const char* address : {"127.0.0.1", "::1", "fe80::1:2", "some.host", "::", ""}) {
    CHECK(hostOf(address) == address);
    CHECK(portOf(address) == 0);
  }
  CHECK(hostOf("[::1]") == "::1");
  CHECK(portOf("[::1]") == 0);
}

TEST_CASE("a port that is no number is refused", "[address]") {
  for (const char* address :
       {"host:http", "host:65536", "host:999999", "host:-1", "host: 1", "[::1]:x"}) {
    CHECK_THROWS_AS(portOf(address), std::runtime_error);
  }
  CHECK_THROWS_WITH(portOf("host:http"), "the address 'host:http' has no valid port: 'http'");
}

TEST_CASE("a bracket that is not closed is refused", "[address]") {
  CHECK_THROWS_WITH(hostOf("[::1"), "the address '[::1' lacks a closing bracket");
}

TEST_CASE("what stands between bracket and port is refused", "[address]") {
  CHECK_THROWS_AS(portOf("[::1]80"), std::runtime_error);
}

TEST_CASE("a port is added where there is none", "[address]") {
  CHECK(withPort("127.0.0.1", 80) == "127.0.0.1:80");
  CHECK(withPort("127.0.0.1:90", 80) == "127.0.0.1:90");
  CHECK(withPort("::1", 80) == "[::1]:80");
  CHECK(withPort("[::1]", 80) == "[::1]:80");
  CHECK(withPort("[::1]:90", 80) == "[::1]:90");
  CHECK(withPort("host", 80) == "host:80");
}

TEST_CASE("a name resolves to a numeric address with its port", "[address]") {
  CHECK(resolve("127.0.0.1") == "127.0.0.1");
  CHECK(resolve("127.0.0.1:80") == "127.0.0.1:80");
  CHECK(resolve("::1") == "::1");
  CHECK(resolve("[::1]:80") == "[::1]:80");
  const std::string localhost = resolve("localhost");
  CHECK((localhost == "127.0.0.1" || localhost == "::1"));
}

TEST_CASE("a name that does not resolve is named", "[address]") {
  CHECK_THROWS_WITH(
      resolve("no..such..host"), Catch::Contains("cannot resolve the host 'no..such..host'"));
}

TEST_CASE("a free port can be bound", "[address]") {
  CHECK_FALSE(whyCannotBind("127.0.0.1"));
  CHECK_FALSE(whyCannotBind("127.0.0.1:0"));
  CHECK_FALSE(whyCannotBind("0.0.0.0"));
}

TEST_CASE("a taken port cannot be bound", "[address]") {
  const TakenPort taken;
  const auto reason = whyCannotBind(taken.address());
  REQUIRE(reason);
  CHECK_THAT(*reason, Catch::Contains("another process uses this port"));
}

TEST_CASE("a port that was tried is free again", "[address]") {
  std::string address;
  {
    const TakenPort taken;
    address = taken.address();
  }
  CHECK_FALSE(whyCannotBind(address));
  CHECK_FALSE(whyCannotBind(address));
}

TEST_CASE("an address of another host cannot be bound", "[address]") {
  const auto reason = whyCannotBind("192.0.2.1"); // reserved for documentation
  REQUIRE(reason);
  CHECK_THAT(*reason, Catch::Contains("no interface of this host has this address"));
}

TEST_CASE("the loopback interface has the loopback address", "[address]") {
  CHECK(addressOfInterface("lo") == "127.0.0.1");
}

TEST_CASE("an interface that does not exist is named with those that do", "[address]") {
  CHECK_THROWS_WITH(
      addressOfInterface("nosuch0"),
      Catch::StartsWith("no network interface 'nosuch0' with an address; this host has ") &&
          Catch::Contains("lo"));
}

TEST_CASE("the route to this host starts at loopback", "[address]") {
  CHECK(addressOnRouteTo("127.0.0.1") == "127.0.0.1");
}

TEST_CASE("there is no route to a host without an address", "[address]") {
  CHECK_FALSE(addressOnRouteTo("no..such..host"));
}

TEST_CASE("wildcards are told from addresses that others can dial", "[address]") {
  for (const char* address : {"0.0.0.0", "0.0.0.0:80", "::", "[::]", "[::]:80"}) {
    CHECK(isWildcard(address));
  }
  for (const char* address : {"127.0.0.1", "10.0.0.0", "::1", "[::1]:80", "host"}) {
    CHECK_FALSE(isWildcard(address));
  }
}

TEST_CASE("the option chooses the address before all else", "[address]") {
  const Variable variable("TP_SOCKET_IFNAME", "nosuch0");
  const ChosenAddress chosen = chooseAddress("127.0.0.1:80", "127.0.0.1");
  CHECK(chosen.address == "127.0.0.1:80");
  CHECK(chosen.reason == "bind_address");
}

TEST_CASE("the environment chooses the interface before the route", "[address]") {
  const Variable gloo("GLOO_SOCKET_IFNAME", "lo");
  SECTION("by TensorPipe's variable first") {
    const Variable tensorPipe("TP_SOCKET_IFNAME", "lo");
    const ChosenAddress chosen = chooseAddress("", "no..such..host");
    CHECK(chosen.address == "127.0.0.1");
    CHECK(chosen.reason == "TP_SOCKET_IFNAME=lo");
  }
  SECTION("by Gloo's variable then, also where TensorPipe's is empty") {
    const Variable tensorPipe("TP_SOCKET_IFNAME", "");
    CHECK(chooseAddress("", "").reason == "GLOO_SOCKET_IFNAME=lo");
  }
}

TEST_CASE("an interface in the environment that does not exist is named", "[address]") {
  const Variable tensorPipe("TP_SOCKET_IFNAME", nullptr);
  const Variable gloo("GLOO_SOCKET_IFNAME", "nosuch0");
  CHECK_THROWS_WITH(
      chooseAddress("", ""),
      Catch::StartsWith("GLOO_SOCKET_IFNAME: no network interface 'nosuch0'"));
}

TEST_CASE("the route to the store chooses the address where nothing else does", "[address]") {
  const Variable tensorPipe("TP_SOCKET_IFNAME", nullptr);
  const Variable gloo("GLOO_SOCKET_IFNAME", nullptr);
  const ChosenAddress chosen = chooseAddress("", "127.0.0.1");
  CHECK(chosen.address == "127.0.0.1");
  CHECK(chosen.reason == "route to the store at 127.0.0.1");
}

TEST_CASE("without any hint there still is an address, and one that can be bound", "[address]") {
  const Variable tensorPipe("TP_SOCKET_IFNAME", nullptr);
  const Variable gloo("GLOO_SOCKET_IFNAME", nullptr);
  const ChosenAddress chosen = chooseAddress("", "");
  CHECK_FALSE(whyCannotBind(chosen.address));
  CHECK_FALSE(isWildcard(chosen.address));
  CHECK_FALSE(chosen.reason.empty());
}

TEST_CASE("no two names for shared memory are the same", "[address]") {
  CHECK(uniqueShmAddress() != uniqueShmAddress());
  CHECK_THAT(uniqueShmAddress(), Catch::Contains(std::to_string(::getpid())));
}
