// A connection being made: dialed, introduced, and handed over once the other side has let us in.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/base/error.h"
#include "backend/transport/authentication.h"
#include "backend/transport/encryption.h"
#include "backend/transport/handshake_socket.h"
#include "backend/transport/loop.h"
#include "backend/transport/loop_watch.h"
#include "backend/transport/memory_file.h"
#include "backend/transport/socket_address.h"
#include "backend/wire/key_ring.h"

namespace torchwire {

struct DialLimits {
  std::chrono::milliseconds patience{10000}; // in all, with every new attempt
  // Nobody listens: for a moment that may be a peer that is just starting, then it is one that is gone.
  std::chrono::milliseconds refusedPatience{200};
  // One of the two processes has no files, memory or ports left: for a moment that may be due to other handshakes.
  std::chrono::milliseconds limitPatience{300};
};

/// Tries until it succeeds, is refused by a peer's decision, or its time is over. What passes by itself (a
/// full backlog, a peer that is not up yet) is tried again; a limit that either side has reached, for a moment. Loop-bound.
class Connector {
 public:
  struct Target {
    SocketAddress address;
    Medium medium;
    uint8_t lane;
    size_t memorySize; // of the memory file that is sent along with the proof; 0: none
    Encryption encryption = Encryption::off;
    std::string dialer = ""; // see HandshakeTerms
  };
  struct Reached {
    int socket; // non-blocking, to be closed by whoever takes it
    std::optional<MemoryFile> memory;
    std::optional<SealedBy> sealedBy;
  };
  /// One of the two. May destroy the connector.
  using Done = std::function<void(const Error&, Reached)>;

  Connector(
      Loop& loop, std::shared_ptr<const KeyRing> keys, const Target& target, Done done,
      DialLimits limits = DialLimits());
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  void start();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage { connecting, awaitingChallenge, awaitingAuthResult };

  void attempt();
  void onReady();
  void onConnected();
  void onChallenge();
  void onAuthResult();
  void send(const HandshakeBytes& message, size_t expected, Stage next, int descriptor = -1);
  const char* objectionToPeer() const;
  void failed(int error);
  void tryAgain(const std::string& reason, int error = 0);
  void onRefusal(const std::string& refusal);
  void waitAtLimit(const std::string& limit, ErrorCode code);
  void giveUp(ErrorCode code, const std::string& reason);
  void finish(const Error& error, Reached reached);

  Loop& loop_;
  const std::shared_ptr<const KeyRing> keys_;
  const Target target_;
  Done done_;
  const DialLimits limits_;
  const Clock::time_point begin_ = Clock::now();

  Stage stage_ = Stage::connecting;
  std::optional<HandshakeInitiator> initiator_;
  std::optional<MemoryFile>
      memory_; // a new one for each attempt: an earlier one may be mapped elsewhere
  HandshakeSocket incoming_{0};
  Descriptor socket_;
  std::unique_ptr<FdWatch> watch_; // after socket_: it goes first
  std::chrono::milliseconds pause_{1};
  std::optional<Clock::time_point> atLimit_; // since when
  std::string lastReason_ = "no answer";
  LoopTimer retry_, deadline_;
};

} // namespace torchwire
