// A stream that says how long a message may stall.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "test/unit/support/forwarding_stream.h"

namespace torchwire {

/// As another stream, but for that. See Stream.
class ImpatientStream final : public ForwardingStream {
 public:
  ImpatientStream(
      std::unique_ptr<Stream> inner, std::chrono::milliseconds patience, size_t heldBack = 0)
      : ForwardingStream(std::move(inner)), patience_(patience), heldBack_(heldBack) {}

  size_t heldBack() const override {
    return heldBack_;
  }
  std::chrono::milliseconds stallPatience() const override {
    return patience_;
  }

 private:
  const std::chrono::milliseconds patience_;
  const size_t heldBack_;
};

} // namespace torchwire
