// A stream that passes everything on to another: what tests derive theirs from.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "backend/transport/stream.h"

namespace torchwire {

/// See Stream.
class ForwardingStream : public Stream {
 public:
  explicit ForwardingStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}

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

 private:
  const std::unique_ptr<Stream> inner_;
};

} // namespace torchwire
