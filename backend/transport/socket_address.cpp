#include "backend/transport/socket_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "backend/base/address.h"

namespace torchwire {

SocketAddress SocketAddress::tcp(const std::string& address) {
  const std::string host = hostOf(address);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST; // nothing here may wait for a name server
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (host.empty() ||
      getaddrinfo(host.c_str(), std::to_string(portOf(address)).c_str(), &hints, &found) != 0) {
    throw std::runtime_error("'" + address + "' is not a numeric IP address");
  }
  SocketAddress result;
  std::memcpy(&result.storage_, found->ai_addr, found->ai_addrlen);
  result.size_ = found->ai_addrlen;
  freeaddrinfo(found);
  return result;
}

SocketAddress SocketAddress::abstractUnix(const std::string& name) {
  sockaddr_un address{};
  if (name.empty() || name.size() + 1 > sizeof address.sun_path) {
    throw std::runtime_error("'" + name + "' cannot be the name of an abstract Unix socket");
  }
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1); // after a zero: that makes it abstract
  SocketAddress result;
  std::memcpy(&result.storage_, &address, sizeof address);
  result.size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

SocketAddress SocketAddress::ofSocket(int socket) {
  SocketAddress result;
  result.size_ = sizeof result.storage_;
  getsockname(socket, reinterpret_cast<sockaddr*>(&result.storage_), &result.size_);
  return result;
}

SocketAddress SocketAddress::ofPeer(int socket) {
  SocketAddress result;
  result.size_ = sizeof result.storage_;
  getpeername(socket, reinterpret_cast<sockaddr*>(&result.storage_), &result.size_);
  return result;
}

int SocketAddress::accept(int listeningSocket) {
  size_ = sizeof storage_;
  return accept4(
      listeningSocket, reinterpret_cast<sockaddr*>(&storage_), &size_,
      SOCK_NONBLOCK | SOCK_CLOEXEC);
}

std::string SocketAddress::host() const {
  if (family() == AF_UNIX) {
    const auto* address = reinterpret_cast<const sockaddr_un*>(&storage_);
    const size_t path = offsetof(sockaddr_un, sun_path) + 1;
    return size_ <= path ? std::string() : std::string(address->sun_path + 1, size_ - path);
  }
  char host[NI_MAXHOST] = "";
  getnameinfo(get(), size_, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

uint16_t SocketAddress::port() const {
  switch (family()) {
    case AF_INET:
      return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
    case AF_INET6:
      return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
    default:
      return 0;
  }
}

std::string SocketAddress::describe() const {
  return family() == AF_UNIX ? host() : withPort(host(), port());
}

} // namespace torchwire
