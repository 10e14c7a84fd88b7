// Messages of a fixed size on a non-blocking socket, perhaps with a descriptor.
#pragma once

#include <cstddef>
#include <utility>

#include "backend/transport/authentication.h"
#include "backend/transport/stream.h"

namespace torchwire {

/// A file descriptor that is closed with this. A value that is moved, not copied.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.take()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();

  int get() const {
    return fd_;
  }
  /// Gives it away: -1 if there is none.
  int take() {
    return std::exchange(fd_, -1);
  }

 private:
  int fd_ = -1;
};

/// Receives one message of a size known beforehand, and not a byte more. Not thread-safe.
class HandshakeSocket {
 public:
  explicit HandshakeSocket(size_t size) : bytes_(size) {}

  /// Takes what there is. A descriptor that comes along is kept if `into` is given; others are closed.
  Progress receive(int socket, Descriptor* into = nullptr);
  bool isComplete() const {
    return received_ == bytes_.size();
  }
  /// What has come so far.
  ForeignBytes begun() const {
    return ForeignBytes(bytes_).first(received_);
  }
  bool isEmpty() const {
    return received_ == 0;
  }
  ForeignBytes bytes() const {
    return bytes_;
  }

 private:
  HandshakeBytes bytes_;
  size_t received_ = 0;
};

/// Sends a message, perhaps with a descriptor. The messages of a handshake fit into any socket's buffer, so
/// that false means: the other side is gone or does not keep to the handshake.
bool sendAll(int socket, ForeignBytes message, int descriptor = -1);

} // namespace torchwire
