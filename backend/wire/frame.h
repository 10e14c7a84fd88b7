// The unit that links carry, and its fixed header.
//
// Every frame starts with the header below: 48 bytes, of which frames of the handshake and goodbyes have only the first
// 32. What follows depends on the kind:
//
// | kind     | sender -> receiver     | after the header              | order and loss                          |
// | -------- | ---------------------- | ----------------------------- | --------------------------------------- |
// | hello    | dialer -> accepter    | Hello (handshake.h)           | first on a link; lost: the dial fails   |
// | welcome  | accepter -> dialer    | Hello of the accepter         | answers hello; then both may send       |
// | refuse   | accepter -> dialer    | Refusal; then the link closes | answers hello                           |
// |          | or, later, either way  | Refusal: why its sender will  | last on a link, not answered; lost: the |
// |          |                        | read no further frame         | link has broken, but nobody says why    |
// | request  | either way             | message (codec.h)             | any order; lost: the link has broken,   |
// |          |                        |                               | it comes again on the session's next    |
// |          |                        |                               | one; without a session its call fails   |
// | response | callee -> caller       | message, or an error sentence | any order, once per request; a late one |
// |          |                        |                               | (its call has ended) is dropped         |
// | goodbye  | whoever leaves         | nothing, or Goodbye           | last on a link; lost: the loss of the   |
// |          |                        |                               | link reads as a crash, not as a leave   |
// | acknow-  | either way             | nothing                       | any order; lost: the next one, or any   |
// | ledge    |                        |                               | other numbered frame, says the same     |
//
// docs/protocol.md has the bytes. Numbers are little-endian.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/base/bytes.h"
#include "backend/wire/undo.h"

namespace torchwire {

/// Raised by one whenever a frame's or a handshake's bytes change; workers with different versions
/// refuse each other.
constexpr uint32_t kProtocolVersion = 19;

enum class FrameKind : uint8_t {
  hello = 1,
  welcome = 2,
  refuse = 3,
  request = 4,
  response = 5,
  goodbye = 6,
  acknowledge = 7,
};

/// Memory that someone else owns, to be sent.
struct Segment {
  const void* data = nullptr;
  size_t length = 0;
};

/// Memory that was received, shared by whoever views it.
struct Blob {
  std::shared_ptr<void> data;
  size_t length = 0;
};

/// Allocates `length` bytes, aligned for any tensor (64 bytes). Throws std::bad_alloc.
Blob allocateBlob(size_t length);

/// A frame on its way out. `head` (header and all that is small) always travels in one piece;
/// `payloads` are large byte strings, `tensors` large storages for the link's tensor channel.
struct OutgoingFrame {
  std::vector<char> head;
  std::vector<Segment> payloads;
  std::vector<Segment> tensors;
  std::shared_ptr<void> owner; // keeps what the segments point at alive until the frame is sent
  Undo undo;

  size_t bytes() const;
};

/// A frame that arrived whole, or, where this process has no memory for it, only the header of one.
struct IncomingFrame {
  std::vector<char> head;
  std::vector<std::vector<char>> payloads;
  std::vector<Blob> tensors;
  size_t lost = 0; // bytes for which there was no memory: the head is no more than the header

  size_t bytes() const;
};

/// The frame as it would arrive, made without a link: for calls of a worker to itself. Copies what the
/// segments point at, as a link would.
IncomingFrame loopBack(OutgoingFrame frame);

struct FrameHeader {
  FrameKind kind{};
  uint8_t flags = 0; // of the message codec
  // Of a request whose caller has set a deadline: how long it waits from when it has sent this. 0: unknown, or very long.
  std::chrono::milliseconds timeLeft{0};
  // Of a response: how long the callee had the request. 0: it does not say.
  std::chrono::nanoseconds served{0};
  uint32_t messageType = 0; // PyTorch's MessageType, for request and response
  uint64_t callId = 0; // unique among the calls of one incarnation of the caller
  uint64_t bodyLength = 0; // bytes of the message's payload
  // Of requests, responses and acknowledges (session.h). 0: it belongs to no session.
  uint64_t sequence = 0; // counts the numbered frames of one session and direction, from 1
  uint64_t acknowledged = 0; // the sender has received all up to this one

  /// Of requests, responses and acknowledges.
  static constexpr size_t kSize = 48;
  /// Of the other kinds, without the last two fields. This size never changes, so that workers of different versions
  /// can refuse each other.
  static constexpr size_t kShortSize = 32;
  // Where the frame's checksum stands (u64), if the workers use any: see checksum_interceptor.h.
  static constexpr size_t kChecksumOffset = 24;

  void write(ByteWriter& out) const;
  /// Throws FormatError for an unknown kind or a short buffer.
  static FrameHeader read(ByteReader& in);
};

/// A frame whose header has been read: once, by who takes it off a link (and by a ChecksumInterceptor, where there is
/// one).
struct ReceivedFrame {
  FrameHeader header;
  IncomingFrame frame;
  uint64_t incarnation = 0; // of the sender, once the LinkManager has seen it
};
/// Throws FormatError for an unknown kind or a short header.
ReceivedFrame readHeader(IncomingFrame frame);

/// Enters the id in the header of an encoded frame: a call gets its id only once its frame is made.
void setCallId(OutgoingFrame& frame, uint64_t id);
/// Enters it in a request's header, rounded up to 16 ms; what is more than 17 minutes it leaves out.
void setTimeLeft(OutgoingFrame& frame, std::chrono::milliseconds left);
/// Enters it in a response's header, right to a part in 1,000, in microseconds.
void setServed(OutgoingFrame& frame, std::chrono::nanoseconds served);
/// The call that the frame is of, and the kind that it has: of an encoded frame.
uint64_t callIdOf(const OutgoingFrame& frame);
bool isRequest(const OutgoingFrame& frame);

/// Enters where the frame stands in its session, which it learns when it goes out.
void setSequence(OutgoingFrame& frame, uint64_t sequence, uint64_t acknowledged);
/// Says only that all up to this one has been received.
OutgoingFrame acknowledgeFrame(uint64_t acknowledged);

} // namespace torchwire
