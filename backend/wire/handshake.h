// What two workers tell each other before a link carries calls.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/base/error.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// What one side of a session has received of the other's numbered frames. A value.
struct Receipts {
  /// Frames `first` to `last`.
  struct Range {
    uint64_t first = 0;
    uint64_t last = 0;
    bool operator==(const Range&) const = default;
  };

  uint64_t through = 0; // all up to this one
  std::vector<Range> beyond; // and these, in order, with gaps between them

  bool has(uint64_t sequence) const;
  bool operator==(const Receipts&) const = default;

  void write(ByteWriter& out) const;
  /// Throws FormatError for what no session can have received.
  static Receipts read(ByteReader& in);
};

/// The newest session of two incarnations that has ended where this is sent. A value.
struct FormerSession {
  uint64_t id = 0; // 0: none has
  Receipts received; // by the sender
};

/// Which session a link is to go on with (backend/link/session.h). A value.
struct SessionClaim {
  uint64_t id =
      0; // counts the sessions of the two incarnations, from 1; 0: none, frames on the link are not numbered
  bool established = false; // the sender has had a link with it; else it may be new
  Receipts received; // by the sender
  FormerSession former;

  void write(ByteWriter& out) const;
  /// Throws FormatError for what no session can have received.
  static SessionClaim read(ByteReader& in);
};

/// Introduces a worker: sent by the dialer as `hello`, by the accepter as `welcome`. A value.
struct Hello {
  WorkerRecord self;
  uint64_t groupId = 0;
  // Whom the dialer means to reach. A process that took over the address of a dead worker is not it.
  WorkerId toId = -1;
  uint64_t toIncarnation = 0;
  uint64_t linkId = 0; // random: names the link that this hello asks for, or that a welcome grants
  uint64_t lastLinkId = 0; // the newest link that the sender has had with the receiver, 0: none
  SessionClaim session;
  std::vector<char> offer; // the sender's transports and channels, for its link context to read

  OutgoingFrame encode(FrameKind kind) const;
  /// Throws FormatError when the frame is not a torchwire hello or welcome.
  static Hello decode(const IncomingFrame& frame);
};

/// Why the accepter does not want the link.
struct Refusal {
  ErrorCode code = ErrorCode::refused;
  std::string reason;

  OutgoingFrame encode() const;
  static Refusal decode(const IncomingFrame& frame);
};

/// The last frame of a worker that leaves. A value.
struct Goodbye {
  static constexpr size_t kMaxReason = 500; // bytes

  // Why it leaves without the others, as in "it ended by ValueError: on purpose": a line. Empty: in order, or it does not say.
  std::string reason;
  bool processEnds = false; // and does so for that reason

  /// Shortens the reason where it is too long.
  OutgoingFrame encode() const;
  static Goodbye decode(const IncomingFrame& frame);
};

/// Whether `self`, in the group of `groupId`, may accept this hello: nothing if it may, else why not.
std::optional<Refusal> objectionToHello(
    const Hello& hello, const WorkerRecord& self, uint64_t groupId);

/// The kind of a frame. Throws FormatError.
FrameKind kindOf(const IncomingFrame& frame);

/// A frame that is only a header.
OutgoingFrame bareFrame(FrameKind kind);

} // namespace torchwire
