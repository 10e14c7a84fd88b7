// Frames that carry a checksum, for memory and networks that are not to be trusted.
#pragma once

#include "backend/link/link_interceptor.h"

namespace torchwire {

/// Enters a checksum over all of a frame, its payloads and tensors included, when it is sent, and compares it
/// when the frame arrives. A damaged frame is never handed on: the receive fails with badFrame, and the link
/// stays usable for telling the other side why.
///
/// Frames of the handshake have none, so that workers of which one has no interceptor can refuse each other
/// with a sentence; but they have to show that they have none, which a damaged frame of another kind cannot.
///
/// Thread-safe.
class ChecksumInterceptor final : public LinkInterceptor {
 public:
  uint32_t linkOption() const override {
    return link_options::kChecksums;
  }
  std::unique_ptr<LinkContext> wrap(std::unique_ptr<LinkContext> links, Timer& timer) override;
  std::shared_ptr<Link> wrapLoopback(std::shared_ptr<Link> link, Timer& timer) override;
};

/// Enters the checksum into a frame that was made beneath the interceptor. Where there is none, nobody
/// looks at it.
void enterChecksum(OutgoingFrame& frame);

} // namespace torchwire
