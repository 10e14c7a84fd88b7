// A stream that says how long a message may stall.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "backend/transport/stream.h"

namespace torchwire {

/// As another stream, but for that. See Stream.
class ImpatientStream final : public Stream {
 public:
  ImpatientStream(
      std::unique_ptr<Stream> inner, std::chrono::milliseconds patience, size_t heldBack = 0)
      : inner_(std::move(inner)), patience_(patience), heldBack_(heldBack) {}

  void start(std::function<void()> ready) override {
    inner_->start(std::move(ready));
  }
  void setInterest(bool reading, bool writing) override {
    inner_->setInterest(reading, writing);
  }
  Progress write(const iovec* parts, size_t count) override {
    return inner_->write(parts, count);
  }
  Progress read(void* into, size_t length) override {
    return inner_->read(into, length);
  }
  size_t heldBack() const override {
    return heldBack_;
  }
  std::chrono::milliseconds stallPatience() const override {
    return patience_;
  }

 private:
  const std::unique_ptr<Stream> inner_;
  const std::chrono::milliseconds patience_;
  const size_t heldBack_;
};

} // namespace torchwire
