// The narrow interface between the protocol and whatever carries frames.
//
// Implementations: a TensorPipe pipe (tensorpipe_link.h), one to oneself (loopback_link.h), one in memory (tests) and one
// that fails on a seeded plan (tests and the fault-injection build).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/base/error.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// A two-way, ordered, reliable stream of frames to one peer.
///
/// Every callback is called exactly once, on any thread, possibly before the call that took it
/// returns: callers hold no lock of their own. A callback neither blocks, nor takes the GIL, completes a future or drops
/// what Python may own: the thread may be in the midst of a send (docs/threads.md). After an error all later operations fail too, except
/// after a receive with badFrame: the link may still be whole, for what is left to say on it.
/// Thread-safe.
class Link {
 public:
  using Sent = std::function<void(const Error&)>;
  using Received = std::function<void(const Error&, IncomingFrame)>;

  virtual ~Link() = default;

  /// Sends the frame after those sent before. `sent` tells that the frame's memory is free again and
  /// the bytes are on their way, or why not.
  virtual void send(OutgoingFrame frame, Sent sent) = 0;

  /// The same for a frame that others keep: it is not changed, and not kept longer than one that is the link's own. Links
  /// that write into frames send a copy, as all do that do not override this.
  virtual void sendShared(std::shared_ptr<const OutgoingFrame> frame, Sent sent) {
    send(OutgoingFrame(*frame), std::move(sent));
  }

  /// Waits for one frame. At most one receive may be pending. After a frame for which there was no memory (`lost`) the next
  /// receive fails.
  virtual void receive(Received received) = 0;

  /// `began` is called each time a frame of at least kLargeFrame bytes, which may take its time, has begun to arrive: as
  /// other callbacks, but before that frame's. At most once, before the first receive that is to tell. Links on which
  /// frames arrive as a whole need not tell.
  static constexpr size_t kLargeFrame = size_t{64} << 10;
  virtual void watchLargeFrames(std::function<void()> /*began*/) {}

  /// Fails whatever is pending. Idempotent.
  virtual void close() = 0;
};

/// A transport or channel that a link does not use, and why not.
struct NotTaken {
  std::string name;
  std::string reason; // a clause
  std::string remedy; // what to do about it; empty: nothing
};

/// What would have been preferred to that which a link uses, the best first.
struct Alternatives {
  std::vector<NotTaken> transports;
  std::vector<NotTaken> channels;
};

/// What a link turned out to use, for debug information.
struct LinkDescription {
  std::string transport;
  std::string channel; // for large tensors
  std::string encryption = ""; // by which cipher it is encrypted; empty: it is not
  std::string objection =
      ""; // why there must be no such link, as a sentence on the other worker; empty: nothing
  std::shared_ptr<const Alternatives> alternatives =
      nullptr; // null: unknown. Shared: copied for each look at the peers
  std::shared_ptr<const std::atomic<uint64_t>> arrivals =
      nullptr; // bytes that have come from there, those of all frames; null: they are not counted
};

/// Makes and accepts links of one kind. Thread-safe.
class LinkContext {
 public:
  using Accepted = std::function<void(std::shared_ptr<Link>)>;

  virtual ~LinkContext() = default;

  /// Starts to accept links and returns the address at which others dial this worker.
  /// Called once. Throws std::runtime_error with a sentence when it cannot listen.
  virtual std::string listen(Accepted accepted) = 0;

  /// Where workers on this host may dial it instead; none unless said otherwise. After listen().
  virtual HostAddress hostAddress() const {
    return {};
  }

  /// A link to the peer's address; errors show on its first operation.
  virtual std::shared_ptr<Link> dial(const WorkerRecord& peer) = 0;

  /// Opaque bytes that tell a peer's context what this one can use; sent in the handshake.
  virtual std::vector<char> offer() const = 0;

  /// What a link between this context and one with that offer uses.
  virtual LinkDescription describe(const std::vector<char>& peersOffer) const = 0;

  /// Closes all links and waits until no callback runs any more. Idempotent.
  virtual void join() = 0;
};

} // namespace torchwire
