// A door with its loop, and guests to knock at it: honest ones and strangers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/transport/door.h"
#include "backend/transport/handshake_socket.h"
#include "test/unit/bell.h"
#include "test/unit/on_loop.h"

namespace torchwire {

inline constexpr uint64_t kDoorGroup = 42;
inline constexpr uint8_t kDoorLane = 3;
inline const std::string kDoorSecret = "0123456789abcdef";
inline constexpr size_t kDoorMemory = 8192;

/// A socket that listens on a free TCP port of this host, or under an abstract name nobody else uses.
Descriptor listenSomewhere(Medium medium, int backlog = 1024);
/// As that, but does not listen yet: whoever dials is refused.
Descriptor bindSomewhere(Medium medium);

/// Somebody who knocks: a blocking socket, and patience enough for any test. Not thread-safe.
class Visitor {
 public:
  explicit Visitor(const SocketAddress& address);
  /// With a socket that is connected already.
  explicit Visitor(Descriptor connected);

  void send(ForeignBytes bytes, int descriptor = -1);
  /// So many bytes, or fewer if the other side closes.
  HandshakeBytes receive(size_t count);
  /// Waits until the other side has closed; false if it does not. What it said before is lost.
  bool isLetGo();
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

/// Loop-bound things behind thread-safe methods. Every guest that is admitted is kept.
class DoorUnderTest {
 public:
  explicit DoorUnderTest(Medium theMedium, DoorLimits limits = DoorLimits())
      : DoorUnderTest(theMedium, limits, listenSomewhere(theMedium)) {}
  DoorUnderTest(Medium theMedium, DoorLimits limits, Descriptor listening);
  ~DoorUnderTest();
  DoorUnderTest(const DoorUnderTest&) = delete;
  DoorUnderTest& operator=(const DoorUnderTest&) = delete;

  /// Nobody is let in any more, and guests in the handshake are let go.
  void close();

  size_t admitted() const EXCLUDES(mutex_);
  /// Waits until somebody has been admitted, and takes the first.
  Door::Admitted take();

  /// Greets, proves and checks the verdict, as a dialler does: what the door answers last.
  Answer enter(Visitor& visitor, int memory = -1);
  /// That an honest guest is admitted, now.
  bool letsHonestGuestIn();

  const Medium medium;
  const GroupKey key{kDoorGroup, kDoorSecret};
  const std::shared_ptr<Loop> loop;
  const SocketAddress address;
  size_t memorySize() const {
    return medium == Medium::shm ? kDoorMemory : 0;
  }
  Bell bell;

 private:
  mutable Mutex mutex_{LockRank::test};
  std::vector<Door::Admitted> admitted_ GUARDED_BY(mutex_);
  std::unique_ptr<Door> door_; // the loop's
};

/// The answer in a challenge, and in a verdict.
Answer answerIn(const HandshakeBytes& message);

} // namespace torchwire
