// Where a socket is: a numeric TCP address or an abstract Unix name.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace torchwire {

/// A value. Not thread-safe.
class SocketAddress {
 public:
  /// "127.0.0.1:80", "[::1]:80", "fe80::1%eth0"; port 0 where there is none.
  /// Throws std::runtime_error with a sentence when that is not a numeric address.
  static SocketAddress tcp(const std::string& address);
  /// A name in the abstract namespace: no file, gone with its socket.
  /// Throws std::runtime_error when it is empty or too long.
  static SocketAddress abstractUnix(const std::string& name);
  static SocketAddress ofSocket(int socket);
  /// Of the other end of a connected socket.
  static SocketAddress ofPeer(int socket);

  SocketAddress() = default;
  /// Accepts a connection, non-blocking, and becomes the address that it comes from. Returns the socket, or
  /// -1 with errno set.
  int accept(int listeningSocket);

  int family() const {
    return storage_.ss_family;
  }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage_);
  }
  socklen_t size() const {
    return size_;
  }
  /// TCP: "127.0.0.1", "::1"; Unix: the name.
  std::string host() const;
  uint16_t port() const; // 0 for Unix
  /// What tcp() or abstractUnix() takes.
  std::string describe() const;

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

} // namespace torchwire
