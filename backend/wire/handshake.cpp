#include "backend/wire/handshake.h"

namespace torchwire {
namespace {

constexpr uint32_t kHelloMagic = 0x45525754; // "TWRE"

// Why a link is refused, as on the wire.
constexpr uint32_t kRefused = 1;
constexpr uint32_t kDuplicate = 2;

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
  const uint32_t length = in.count(1);
  const char* offer = in.raw(length);
  hello.offer.assign(offer, offer + length);
  return hello;
}

OutgoingFrame Refusal::encode() const {
  OutgoingFrame frame = bareFrame(FrameKind::refuse);
  ByteWriter out(frame.head);
  out.number(code == ErrorCode::duplicateLink ? kDuplicate : kRefused);
  out.string(reason);
  return frame;
}

Refusal Refusal::decode(const IncomingFrame& frame) {
  ByteReader in = afterHeader(frame);
  Refusal refusal;
  refusal.code =
      in.number<uint32_t>() == kDuplicate ? ErrorCode::duplicateLink : ErrorCode::refused;
  refusal.reason = in.string();
  return refusal;
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
    return refuse(
        "its address now belongs to " + self.describe() +
        ", started anew since: the worker that you mean is gone");
  }
  if (hello.self.id == self.id) {
    return refuse(
        "it has the rank of " + self.describe() + ", which it dials: give each worker its own");
  }
  return std::nullopt;
}

} // namespace torchwire
