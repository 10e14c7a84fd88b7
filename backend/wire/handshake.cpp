#include "backend/wire/handshake.h"

#include <algorithm>
#include <iterator>

#include "backend/base/one_line.h"

namespace torchwire {
namespace {

constexpr uint32_t kHelloMagic = 0x45525754; // "TWRE"

// Why a link is refused, as on the wire.
constexpr uint32_t kRefused = 1;
constexpr uint32_t kDuplicate = 2;
constexpr uint32_t kSessionUnknown = 3;
constexpr uint32_t kDeclaredDead = 4;
constexpr uint32_t kPartOver = 5;
constexpr uint32_t kReplaced = 6;

uint32_t numberOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::duplicateLink:
      return kDuplicate;
    case ErrorCode::sessionUnknown:
      return kSessionUnknown;
    case ErrorCode::declaredDead:
      return kDeclaredDead;
    case ErrorCode::partOver:
      return kPartOver;
    case ErrorCode::workerDied:
      return kReplaced;
    default:
      return kRefused;
  }
}

ErrorCode codeOf(uint32_t number) {
  switch (number) {
    case kDuplicate:
      return ErrorCode::duplicateLink;
    case kSessionUnknown:
      return ErrorCode::sessionUnknown;
    case kDeclaredDead:
      return ErrorCode::declaredDead;
    case kPartOver:
      return ErrorCode::partOver;
    case kReplaced:
      return ErrorCode::workerDied;
    default:
      return ErrorCode::refused;
  }
}

ByteReader afterHeader(const IncomingFrame& frame) {
  ByteReader in(frame.head);
  FrameHeader::read(in);
  return in;
}

} // namespace

FrameKind kindOf(const IncomingFrame& frame) {
  ByteReader in(frame.head);
  return FrameHeader::read(in).kind;
}

OutgoingFrame bareFrame(FrameKind kind) {
  OutgoingFrame frame;
  ByteWriter out(frame.head);
  FrameHeader{.kind = kind}.write(out);
  return frame;
}

bool Receipts::has(uint64_t sequence) const {
  if (sequence <= through) {
    return true;
  }
  const auto after = std::upper_bound(
      beyond.begin(), beyond.end(), sequence,
      [](uint64_t value, const Range& range) { return value < range.first; });
  return after != beyond.begin() && sequence <= std::prev(after)->last;
}

void Receipts::write(ByteWriter& out) const {
  out.number(through);
  out.number(static_cast<uint32_t>(beyond.size()));
  for (const Range& range : beyond) {
    out.number(range.first);
    out.number(range.last);
  }
}

Receipts Receipts::read(ByteReader& in) {
  Receipts receipts;
  receipts.through = in.number<uint64_t>();
  uint64_t known = receipts.through;
  for (uint32_t left = in.count(2 * sizeof(uint64_t)); left > 0; --left) {
    const auto first = in.number<uint64_t>();
    const auto last = in.number<uint64_t>();
    // The frame after `known` is missing, or the range would not begin anew. (Subtracted, so as not to overflow.)
    if (first < known || first - known < 2 || last < first) {
      throw FormatError("ranges of received frames that are out of order");
    }
    receipts.beyond.push_back({first, last});
    known = last;
  }
  return receipts;
}

void SessionClaim::write(ByteWriter& out) const {
  out.number(id);
  out.flag(established);
  received.write(out);
  out.number(former.id);
  former.received.write(out);
}

SessionClaim SessionClaim::read(ByteReader& in) {
  SessionClaim claim;
  claim.id = in.number<uint64_t>();
  claim.established = in.flag();
  claim.received = Receipts::read(in);
  claim.former.id = in.number<uint64_t>();
  claim.former.received = Receipts::read(in);
  return claim;
}

OutgoingFrame Hello::encode(FrameKind kind) const {
  OutgoingFrame frame = bareFrame(kind);
  ByteWriter out(frame.head);
  out.number(kHelloMagic);
  out.number(self.protocolVersion); // before all else, so that any version can read it
  self.write(out);
  out.number(groupId);
  out.number(toId);
  out.number(toIncarnation);
  out.number(linkId);
  out.number(lastLinkId);
  session.write(out);
  out.number(static_cast<uint32_t>(offer.size()));
  out.raw(offer.data(), offer.size());
  return frame;
}

Hello Hello::decode(const IncomingFrame& frame) {
  ByteReader in = afterHeader(frame);
  if (in.number<uint32_t>() != kHelloMagic) {
    throw FormatError("not a torchwire handshake");
  }
  Hello hello;
  hello.self.protocolVersion = in.number<uint32_t>();
  if (hello.self.protocolVersion != kProtocolVersion) {
    return hello; // the rest may have another form
  }
  hello.self = WorkerRecord::read(in);
  hello.groupId = in.number<uint64_t>();
  hello.toId = in.number<WorkerId>();
  hello.toIncarnation = in.number<uint64_t>();
  hello.linkId = in.number<uint64_t>();
  hello.lastLinkId = in.number<uint64_t>();
  hello.session = SessionClaim::read(in);
  const uint32_t length = in.count(1);
  const char* offer = in.raw(length);
  hello.offer.assign(offer, offer + length);
  return hello;
}

OutgoingFrame Refusal::encode() const {
  OutgoingFrame frame = bareFrame(FrameKind::refuse);
  ByteWriter out(frame.head);
  out.number(numberOf(code));
  out.string(reason);
  return frame;
}

Refusal Refusal::decode(const IncomingFrame& frame) {
  ByteReader in = afterHeader(frame);
  Refusal refusal;
  refusal.code = codeOf(in.number<uint32_t>());
  refusal.reason = in.string();
  return refusal;
}

OutgoingFrame Goodbye::encode() const {
  OutgoingFrame frame = bareFrame(FrameKind::goodbye);
  if (!reason.empty()) {
    ByteWriter out(frame.head);
    out.flag(processEnds);
    out.string(oneLine(reason, kMaxReason));
  }
  return frame;
}

// Strict: another frame whose kind has been changed on the way, where that is not encrypted, is none. Behind the first 32
// bytes that has more of its header.
Goodbye Goodbye::decode(const IncomingFrame& frame) {
  ByteReader in = afterHeader(frame);
  Goodbye goodbye;
  if (in.remaining() > 0) {
    goodbye.processEnds = in.flag();
    goodbye.reason = oneLine(in.string(), kMaxReason);
    if (goodbye.reason.empty() || in.remaining() > 0 || !frame.payloads.empty() ||
        !frame.tensors.empty()) {
      throw FormatError("a goodbye with something else in it");
    }
  }
  return goodbye;
}

std::optional<Refusal> objectionToHello(
    const Hello& hello, const WorkerRecord& self, uint64_t groupId) {
  const auto refuse = [](std::string reason) {
    return Refusal{ErrorCode::refused, std::move(reason)};
  };
  if (hello.self.protocolVersion != self.protocolVersion) {
    return refuse(
        "it speaks torchwire protocol " + std::to_string(self.protocolVersion) + ", not " +
        std::to_string(hello.self.protocolVersion) + ": install the same torchwire on both");
  }
  if (hello.self.torchVersion != self.torchVersion) {
    return refuse(
        "it runs torch " + self.torchVersion + ", not " + hello.self.torchVersion +
        ": install the same torch on both");
  }
  if (auto objection = linkOptionsObjection(
          "it", self.linkOptions, "the dialing worker", hello.self.linkOptions)) {
    return refuse(*objection);
  }
  if (hello.groupId != groupId) {
    return refuse("it belongs to another RPC group: check the init_method of both");
  }
  if (hello.toId != self.id || hello.toIncarnation != self.incarnation) {
    // Of two processes of the same rank one has ended, unless this one has been declared dead. A process of another rank may
    // be on another host that has the same address.
    return Refusal{
        hello.toId == self.id ? ErrorCode::workerDied : ErrorCode::refused,
        "its address now belongs to " + self.describe() +
            ", started anew since: the worker that you mean is gone"};
  }
  if (hello.self.id == self.id) {
    return refuse(
        "it has the rank of " + self.describe() + ", which it dials: give each worker its own");
  }
  return std::nullopt;
}

} // namespace torchwire
