// One listening endpoint of this process and everything that comes in or goes out by it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "backend/base/error.h"
#include "backend/transport/acceptor.h"
#include "backend/transport/connector.h"
#include "backend/transport/loop.h"
#include "backend/transport/sealed_peers.h"
#include "backend/transport/stream.h"
#include "backend/wire/key_ring.h"

namespace torchwire {

/// What differs between wire_shm and wire_tcp.
class EndpointTraits {
 public:
  virtual ~EndpointTraits() = default;
  virtual Medium medium() const = 0;
  /// Which processes can reach each other: those for which this is equal.
  virtual std::string domain() const = 0;
  /// What a listener's address means. Throws std::runtime_error.
  virtual SocketAddress parse(const std::string& address) const = 0;
  /// The size of the memory that the dialing side brings; 0: none.
  virtual size_t memorySize() const = 0;
  virtual Encryption encryption() const = 0;
  /// Takes the socket. Loop-bound.
  virtual std::unique_ptr<Stream> makeStream(
      Loop& loop, int socket, std::optional<MemoryFile> memory, bool dialed) const = 0;
};

/// Thread-safe, except for what is called loop-bound. Held by shared_ptr; listening ends with the last.
class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  using Admitted = std::function<void(std::unique_ptr<Stream>)>;
  using Dialed = std::function<void(const Error&, std::unique_ptr<Stream>)>;

  /// Takes a socket that listens. `address` is what others dial.
  static std::shared_ptr<Endpoint> open(
      std::shared_ptr<Loop> loop, std::shared_ptr<const KeyRing> keys,
      std::unique_ptr<EndpointTraits> traits, int listeningSocket, std::string address);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const std::shared_ptr<Loop>& loop() const {
    return kept_;
  }
  const EndpointTraits& traits() const {
    return *traits_;
  }
  /// How the connections with the worker at that address are sealed, and what comes on them. The worker names the
  /// address itself: nothing binds it to that.
  SealedPeers::Peer sealedPeer(const std::string& dialedAs) const {
    return sealedPeers_->peer(tagOf(dialedAs));
  }
  /// This worker's address in the form that both sides of a handshake have.
  const std::string& dialedAs() const {
    return dialedAs_;
  }
  /// What others pass to dial() for a lane.
  std::string addressOf(uint8_t lane) const;

  /// Whoever is let in on the lane goes to `admitted`, on the loop; null: nobody is let in any more.
  /// Loop-bound.
  void setLane(uint8_t lane, Admitted admitted);

  /// Makes a connection to the address; `dialed` is called once, on the loop, unless the endpoint
  /// goes first. Loop-bound.
  void dial(const std::string& address, Dialed dialed);

 private:
  Endpoint(
      std::shared_ptr<Loop> loop, std::shared_ptr<const KeyRing> keys,
      std::unique_ptr<EndpointTraits> traits, std::string address);
  void openAcceptor(int listeningSocket);
  void admit(Acceptor::Admitted peer);
  /// `peer`: the tag of its address.
  std::unique_ptr<Stream> makeStream(
      int socket, std::optional<MemoryFile> memory, bool dialed, uint64_t peer,
      const std::optional<SealedBy>& sealedBy);
  void onDialed(
      uint64_t number, uint64_t peer, const Error& error, Connector::Reached reached,
      const Dialed& dialed);

  std::shared_ptr<Loop> kept_; // given up at the end, by whoever held the endpoint last
  Loop& loop_; // the same: the loop may use it at that moment
  const std::shared_ptr<const KeyRing> keys_;
  const std::unique_ptr<EndpointTraits> traits_;
  const std::string address_;
  const std::string dialedAs_;
  const std::shared_ptr<SealedPeers> sealedPeers_ = std::make_shared<SealedPeers>();

  // Loop-bound.
  std::unique_ptr<Acceptor> acceptor_;
  std::map<uint8_t, Admitted> lanes_;
  std::map<uint64_t, std::unique_ptr<Connector>> connectors_;
  uint64_t nextConnector_ = 0;
};

} // namespace torchwire
