#include "backend/base/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "backend/base/resource_limits.h"

namespace torchwire {
namespace {

struct Parts {
  std::string host;
  std::string port; // empty: none
};

Parts split(const std::string& address) {
  if (!address.empty() && address.front() == '[') {
    const size_t close = address.find(']');
    if (close == std::string::npos) {
      throw std::runtime_error("the address '" + address + "' lacks a closing bracket");
    }
    const bool hasPort = close + 1 < address.size();
    if (hasPort && address[close + 1] != ':') {
      throw std::runtime_error("the address '" + address + "' has no ':' between host and port");
    }
    return {address.substr(1, close - 1), hasPort ? address.substr(close + 2) : std::string()};
  }
  const bool oneColon = std::count(address.begin(), address.end(), ':') == 1;
  if (!oneColon) { // a name, an IPv4 address or a bare IPv6 address
    return {address, std::string()};
  }
  const size_t colon = address.find(':');
  return {address.substr(0, colon), address.substr(colon + 1)};
}

std::string numericHost(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  if (getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return std::string();
  }
  return text;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList lookUp(const std::string& host, const std::string& port, int socketType) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = socketType;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(host.c_str(), port.empty() ? "0" : port.c_str(), &hints, &found);
  if (rc != 0) {
    throw std::runtime_error("cannot resolve the host '" + host + "': " + gai_strerror(rc));
  }
  return AddressList(found, freeaddrinfo);
}

class Socket {
 public:
  Socket(int family, int type) : fd_(::socket(family, type | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const {
    return fd_;
  }

 private:
  const int fd_;
};

bool isLinkLocal(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  const auto ip = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
  return (ip >> 16) == 0xa9fe;
}

bool isLoopback(const std::string& host) {
  return host.rfind("127.", 0) == 0 || host == "::1";
}

std::optional<std::string> addressOfOwnName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) {
    return std::nullopt;
  }
  try {
    const AddressList list = lookUp(name, "", SOCK_STREAM);
    for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
      const std::string host = numericHost(a->ai_addr, a->ai_addrlen);
      if (!isLoopback(host) && !isLinkLocal(a->ai_addr) && !whyCannotBind(host)) {
        return host;
      }
    }
  } catch (const std::runtime_error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

} // namespace

std::string hostOf(const std::string& address) {
  return split(address).host;
}

uint16_t portOf(const std::string& address) {
  const std::string port = split(address).port;
  if (port.empty()) {
    return 0;
  }
  const bool digits =
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || port.size() > 5 || std::stoul(port) > 65535) {
    throw std::runtime_error("the address '" + address + "' has no valid port: '" + port + "'");
  }
  return static_cast<uint16_t>(std::stoul(port));
}

std::string withPort(const std::string& address, uint16_t port) {
  const uint16_t own = portOf(address);
  const std::string host = hostOf(address);
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(own != 0 ? own : port);
}

std::string resolve(const std::string& address) {
  const uint16_t port = portOf(address);
  const AddressList list = lookUp(hostOf(address), "", SOCK_STREAM);
  const std::string host = numericHost(list->ai_addr, list->ai_addrlen);
  return port == 0 ? host : withPort(host, port);
}

std::string bindFailure(const std::string& address, int code) {
  std::string reason = std::strerror(code);
  if (code == EADDRINUSE) {
    reason += portOf(address) == 0
        ? "; " + portLimits()
        : "; another process uses this port, choose another in bind_address";
  } else if (code == EADDRNOTAVAIL) {
    reason += "; no interface of this host has this address, check bind_address";
  }
  return reason;
}

std::optional<std::string> whyCannotBind(const std::string& address) {
  const AddressList list = lookUp(hostOf(address), std::to_string(portOf(address)), SOCK_STREAM);
  const Socket socket(list->ai_family, SOCK_STREAM);
  const int reuse = 1;
  if (socket.fd() < 0 ||
      setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)) != 0 ||
      bind(socket.fd(), list->ai_addr, list->ai_addrlen) != 0 || ::listen(socket.fd(), 1) != 0) {
    return bindFailure(address, errno);
  }
  return std::nullopt;
}

std::string addressOfInterface(const std::string& interface) {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) {
    throw std::runtime_error(
        std::string("cannot list the network interfaces: ") + std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, freeifaddrs);
  std::string v6;
  std::vector<std::string> names;
  for (const ifaddrs* i = list.get(); i != nullptr; i = i->ifa_next) {
    if (std::find(names.begin(), names.end(), i->ifa_name) == names.end()) {
      names.emplace_back(i->ifa_name);
    }
    if (interface != i->ifa_name || i->ifa_addr == nullptr) {
      continue;
    }
    if (i->ifa_addr->sa_family == AF_INET) {
      return numericHost(i->ifa_addr, sizeof(sockaddr_in));
    }
    if (i->ifa_addr->sa_family == AF_INET6 && !isLinkLocal(i->ifa_addr) && v6.empty()) {
      v6 = numericHost(i->ifa_addr, sizeof(sockaddr_in6));
    }
  }
  if (v6.empty()) {
    std::string known;
    for (const std::string& name : names) {
      known += (known.empty() ? "" : ", ") + name;
    }
    throw std::runtime_error(
        "no network interface '" + interface + "' with an address; this host has " + known);
  }
  return v6;
}

std::optional<std::string> addressOnRouteTo(const std::string& host) {
  try {
    const AddressList list =
        lookUp(host, "9", SOCK_DGRAM); // the port does not matter: nothing is sent
    for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
      const Socket socket(a->ai_family, SOCK_DGRAM);
      sockaddr_storage own{};
      socklen_t length = sizeof(own);
      if (socket.fd() < 0 || connect(socket.fd(), a->ai_addr, a->ai_addrlen) != 0 ||
          getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
          isLinkLocal(reinterpret_cast<sockaddr*>(&own))) {
        continue;
      }
      const std::string found = numericHost(reinterpret_cast<sockaddr*>(&own), length);
      // This host under its own name, which Debian maps to 127.0.1.1: no address for other hosts.
      if (!isLoopback(found) || isLoopback(host) || host == "localhost") {
        return found;
      }
    }
  } catch (const std::runtime_error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

ChosenAddress chooseAddress(const std::string& option, const std::string& storeHost) {
  if (!option.empty()) {
    return {resolve(option), "bind_address"};
  }
  for (const char* variable : {"TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    const char* interface = std::getenv(variable);
    if (interface != nullptr && *interface != '\0') {
      try {
        return {addressOfInterface(interface), std::string(variable) + "=" + interface};
      } catch (const std::runtime_error& e) {
        throw std::runtime_error(std::string(variable) + ": " + e.what());
      }
    }
  }
  if (!storeHost.empty()) {
    if (auto address = addressOnRouteTo(storeHost)) {
      return {*address, "route to the store at " + storeHost};
    }
  }
  if (auto address = addressOfOwnName()) {
    return {*address, "this host's name"};
  }
  return {"127.0.0.1", "loopback, for want of anything else"};
}

bool isWildcard(const std::string& address) {
  const std::string host = hostOf(address);
  return host == "0.0.0.0" || host == "::";
}

std::string uniqueShmAddress() {
  static std::atomic<uint64_t> count{0};
  return "torchwire_" + std::to_string(::getpid()) + "_" + std::to_string(count++);
}

} // namespace torchwire
