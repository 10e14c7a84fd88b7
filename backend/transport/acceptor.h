// Where connections come in: who is let in, and who is not.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "backend/transport/authentication.h"
#include "backend/transport/encryption.h"
#include "backend/transport/handshake_socket.h"
#include "backend/transport/loop.h"
#include "backend/transport/loop_watch.h"
#include "backend/transport/memory_file.h"
#include "backend/transport/rejection_log.h"
#include "backend/transport/socket_address.h"
#include "backend/wire/key_ring.h"

namespace torchwire {

struct AcceptorLimits {
  std::chrono::milliseconds patience{10000}; // for a whole handshake
  size_t maxPending = 256; // in the handshake
  // If there are that many, the one that has stayed longest goes, as an unknown peer most likely, once it
  // had this time. Until then further ones wait in the backlog.
  std::chrono::milliseconds minAge{200};
};

/// Watches a listening socket and leads each connection through the handshake (authentication.h). A pending
/// handshake costs a descriptor and a few hundred bytes, whatever the peer sends. A process that has no descriptors left
/// gives up one that is kept for this, to tell those who connect, one after another. Loop-bound.
class Acceptor {
 public:
  /// What it lets peers in to.
  struct Place {
    std::string address; // as it is dialed
    Medium medium;
    size_t memorySize = 0; // of the memory file that comes with a proof; 0: none does
    Encryption encryption = Encryption::off;
  };
  /// A peer that proved to be of the group.
  struct Admitted {
    int socket; // non-blocking, to be closed by whoever takes it
    uint8_t lane;
    uint64_t dialer; // see HandshakeResponder
    std::optional<MemoryFile> memory; // wire_shm
    std::optional<SealedBy> sealedBy;
  };
  struct Events {
    std::function<bool(uint8_t lane)> hasLane;
    std::function<void(Admitted)> admitted;
  };

  /// Takes the socket.
  Acceptor(
      Loop& loop, int listeningSocket, std::shared_ptr<const KeyRing> keys, Place place,
      Events events, AcceptorLimits limits = AcceptorLimits());
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  class PendingHandshake;

  HandshakeTerms terms(int socket) const;
  void acceptAll();
  bool acceptOne();
  bool acceptToRefuse();
  void endRefusal();
  bool makeRoom();
  void pauseAccepting(std::chrono::milliseconds pause);
  void welcome(int socket, const SocketAddress& address, bool refuses = false);
  void reject(PendingHandshake& handshake, const std::string& reason);
  void forget(PendingHandshake& handshake);
  void admit(PendingHandshake& handshake, std::optional<MemoryFile> memory);

  Loop& loop_;
  const int socket_;
  const std::shared_ptr<const KeyRing> keys_;
  const Place place_;
  const Events events_;
  const AcceptorLimits limits_;
  RejectionLog rejections_;
  Descriptor reserve_;
  std::list<std::unique_ptr<PendingHandshake>> pending_; // the one that has waited longest first
  LoopTimer pause_;
  std::unique_ptr<FdWatch> watch_;
};

} // namespace torchwire
