#include "backend/link/checksum_interceptor.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cassert>
#include <cstring>
#include <utility>

namespace torchwire {
namespace {

constexpr size_t kAfterChecksum = FrameHeader::kChecksumOffset + sizeof(uint64_t);

bool isHandshake(FrameKind kind) {
  return kind == FrameKind::hello || kind == FrameKind::welcome || kind == FrameKind::refuse;
}

const char* nameOf(FrameKind kind) {
  switch (kind) {
    case FrameKind::hello:
      return "hello";
    case FrameKind::welcome:
      return "welcome";
    case FrameKind::refuse:
      return "refusal";
    case FrameKind::request:
      return "request";
    case FrameKind::response:
      return "response";
    case FrameKind::goodbye:
      return "goodbye";
    case FrameKind::acknowledge:
      return "acknowledgement";
  }
  return "unknown";
}

Segment segmentOf(const Segment& segment) {
  return segment;
}
Segment segmentOf(const std::vector<char>& bytes) {
  return {bytes.data(), bytes.size()};
}
Segment segmentOf(const Blob& blob) {
  return {blob.data.get(), blob.length};
}

/// One hash over several pieces. Not thread-safe.
class Hash {
 public:
  Hash() {
    XXH3_64bits_reset(&state_);
  }

  void bytes(const void* data, size_t length) {
    if (length > 0) {
      XXH3_64bits_update(&state_, data, length);
    }
  }
  void number(uint64_t value) {
    bytes(&value, sizeof(value));
  }
  /// Their number and lengths go in first, so that a byte that moves from one to the next is seen.
  template <typename Pieces>
  void pieces(const Pieces& all) {
    number(all.size());
    for (const auto& piece : all) {
      number(segmentOf(piece).length);
    }
    for (const auto& piece : all) {
      const Segment segment = segmentOf(piece);
      bytes(segment.data, segment.length);
    }
  }
  uint64_t value() const {
    return XXH3_64bits_digest(&state_);
  }

 private:
  XXH3_state_t state_;
};

/// Of an outgoing or an incoming frame, as if its checksum field were zero.
template <typename Frame>
uint64_t checksumOf(const Frame& frame) {
  Hash hash;
  hash.number(frame.head.size());
  hash.bytes(frame.head.data(), FrameHeader::kChecksumOffset);
  hash.number(0);
  hash.bytes(frame.head.data() + kAfterChecksum, frame.head.size() - kAfterChecksum);
  hash.pieces(frame.payloads);
  hash.pieces(frame.tensors);
  return hash.value();
}

uint64_t writtenChecksum(const IncomingFrame& frame) {
  uint64_t written = 0;
  std::memcpy(&written, frame.head.data() + FrameHeader::kChecksumOffset, sizeof(written));
  return written;
}

Error damaged(const std::string& how, const std::string& what) {
  return Error(ErrorCode::badFrame, "a frame arrived damaged: " + how + " (" + what + ")");
}

std::string describe(const FrameHeader& header) {
  return std::string(nameOf(header.kind)) + ", call " + std::to_string(header.callId) + ", ";
}

/// Why the frame is not what was sent, or success. What it says of the frame may itself be damaged.
Error objectionTo(const IncomingFrame& frame) {
  if (frame.lost != 0) {
    return Error(); // what there is a checksum of has not come
  }
  const std::string size = std::to_string(frame.bytes()) + " bytes";
  FrameHeader header;
  try {
    ByteReader in(frame.head);
    header = FrameHeader::read(in);
  } catch (const FormatError& e) {
    return damaged(std::string("its header cannot be read, ") + e.what(), size);
  }
  const uint64_t expected = isHandshake(header.kind) ? 0 : checksumOf(frame);
  if (writtenChecksum(frame) == expected) {
    return Error();
  }
  if (frame.tensors.empty()) {
    return damaged("its checksum differs", describe(header) + size);
  }
  // Large tensors are read where they lie, once the checksum is made.
  return damaged(
      "its checksum differs, or a tensor in it was changed while it was sent",
      describe(header) + size);
}

/// Has no state of its own. Thread-safe.
class ChecksumLink final : public Link {
 public:
  explicit ChecksumLink(std::shared_ptr<Link> inner) : inner_(std::move(inner)) {}

  void send(OutgoingFrame frame, Sent sent) override {
    assert(frame.head.size() >= FrameHeader::kShortSize);
    if (!isHandshake(static_cast<FrameKind>(frame.head.front()))) {
      enterChecksum(frame);
    }
    inner_->send(std::move(frame), std::move(sent));
  }

  void receive(Received received) override {
    inner_->receive([received = std::move(received)](const Error& error, IncomingFrame frame) {
      const Error objection = error ? error : objectionTo(frame);
      received(objection, objection ? IncomingFrame() : std::move(frame));
    });
  }

  void watchLargeFrames(std::function<void()> began) override {
    inner_->watchLargeFrames(std::move(began));
  }

  void close() override {
    inner_->close();
  }

 private:
  const std::shared_ptr<Link> inner_;
};

/// Thread-safe, as the context that it wraps.
class ChecksumContext final : public LinkContext {
 public:
  explicit ChecksumContext(std::unique_ptr<LinkContext> inner) : inner_(std::move(inner)) {}

  std::string listen(Accepted accepted) override {
    return inner_->listen([accepted = std::move(accepted)](std::shared_ptr<Link> link) {
      accepted(std::make_shared<ChecksumLink>(std::move(link)));
    });
  }
  HostAddress hostAddress() const override {
    return inner_->hostAddress();
  }
  std::shared_ptr<Link> dial(const WorkerRecord& peer) override {
    return std::make_shared<ChecksumLink>(inner_->dial(peer));
  }
  std::vector<char> offer() const override {
    return inner_->offer();
  }
  LinkDescription describe(const std::vector<char>& peersOffer) const override {
    return inner_->describe(peersOffer);
  }
  void join() override {
    inner_->join();
  }

 private:
  const std::unique_ptr<LinkContext> inner_;
};

} // namespace

void enterChecksum(OutgoingFrame& frame) {
  const uint64_t checksum = checksumOf(frame);
  std::memcpy(frame.head.data() + FrameHeader::kChecksumOffset, &checksum, sizeof(checksum));
}

std::shared_ptr<Link> ChecksumInterceptor::wrapLoopback(
    std::shared_ptr<Link> link, Timer& /*timer*/) {
  return std::make_shared<ChecksumLink>(std::move(link));
}

std::unique_ptr<LinkContext> ChecksumInterceptor::wrap(
    std::unique_ptr<LinkContext> links, Timer& /*timer*/) {
  return std::make_unique<ChecksumContext>(std::move(links));
}

} // namespace torchwire
