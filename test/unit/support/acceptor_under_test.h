// An acceptor with its loop, and visitors to it: honest peers and unknown ones.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/transport/acceptor.h"
#include "backend/transport/handshake_socket.h"
#include "test/unit/support/notifier.h"
#include "test/unit/support/on_loop.h"

namespace torchwire {

inline constexpr uint64_t kAcceptorGroup = 42;
inline constexpr uint8_t kAcceptorLane = 3;
inline const std::string kAcceptorSecret = "0123456789abcdef";
inline constexpr size_t kAcceptorMemory = 8192;

/// A socket that listens on a free TCP port of this host, or under an abstract name nobody else uses.
Descriptor listenSomewhere(Medium medium, int backlog = 1024);
/// As that, but does not listen yet: whoever dials is refused.
Descriptor bindSomewhere(Medium medium);

/// Somebody who connects: a blocking socket, and patience enough for any test. Not thread-safe.
class Visitor {
 public:
  explicit Visitor(const SocketAddress& address);
  /// With a socket that is connected already.
  explicit Visitor(Descriptor connected);

  void send(ForeignBytes bytes, int descriptor = -1);
  /// So many bytes, or fewer if the other side closes.
  HandshakeBytes receive(size_t count);
  /// Waits until the other side has closed; false if it does not. What it said before is lost.
  bool isDisconnected();
  void leave() {
    socket_ = Descriptor();
  }
  /// Sends a reset instead of an orderly end. TCP.
  void reset();
  int socket() const {
    return socket_.get();
  }

 private:
  ssize_t receiveSome(unsigned char* into, size_t length);

  Descriptor socket_;
};

/// Loop-bound things behind thread-safe methods. Every peer that is admitted is kept.
class AcceptorUnderTest {
 public:
  explicit AcceptorUnderTest(Medium theMedium, AcceptorLimits limits = AcceptorLimits())
      : AcceptorUnderTest(theMedium, limits, listenSomewhere(theMedium)) {}
  AcceptorUnderTest(
      Medium theMedium, AcceptorLimits limits, Descriptor listening,
      Encryption encryption = Encryption::off);
  ~AcceptorUnderTest();
  AcceptorUnderTest(const AcceptorUnderTest&) = delete;
  AcceptorUnderTest& operator=(const AcceptorUnderTest&) = delete;

  /// Nobody is let in any more, and pending handshakes end.
  void close();

  size_t admitted() const EXCLUDES(mutex_);
  /// Waits until somebody has been admitted, and takes the first.
  Acceptor::Admitted take();

  /// Greets, proves and checks the auth result, as a dialer does: what the acceptor answers last.
  Answer enter(Visitor& visitor, int memory = -1);
  /// That an honest peer is admitted, now.
  bool admitsHonestPeer();

  const Medium medium;
  const GroupKey key{kAcceptorGroup, kAcceptorSecret};
  const std::shared_ptr<Loop> loop;
  const SocketAddress address;
  /// Of whoever dials it.
  HandshakeTerms terms() const {
    return {.address = address.describe()};
  }
  size_t memorySize() const {
    return medium == Medium::shm ? kAcceptorMemory : 0;
  }
  Notifier notifier;

 private:
  mutable Mutex mutex_{LockRank::test};
  std::vector<Acceptor::Admitted> admitted_ GUARDED_BY(mutex_);
  std::unique_ptr<Acceptor> acceptor_; // the loop's
};

/// The answer in a challenge, and in an auth result.
Answer answerIn(const HandshakeBytes& message);

} // namespace torchwire
