// A stream in records that nobody on the path can read or change.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/transport/loop.h"
#include "backend/transport/loop_watch.h"
#include "backend/transport/stream.h"
#include "backend/wire/record_cipher.h"

namespace torchwire {

struct SealedStreamLimits {
  // A record whose rest does not come is one whose length has been changed: nothing else would end it while the other
  // side waits for an answer.
  std::chrono::milliseconds patience{10000}; // 0: for ever
};

/// Seals what is written straight from the caller's memory, and opens what is read straight into it. What is written counts
/// as taken once its record is all in the inner stream: until then the caller offers the same bytes again. A record that
/// does not open, or does not end, ends the stream; nothing of it is given to the reader. See Stream for what may be called
/// where.
class SealedStream final : public Stream {
 public:
  SealedStream(
      Loop& loop, std::unique_ptr<Stream> inner, const RecordKey& outgoing,
      const RecordKey& incoming, SealedStreamLimits limits = SealedStreamLimits(),
      std::shared_ptr<const void> registration = nullptr);

  void start(std::function<void()> ready) override;
  void setInterest(bool reading, bool writing) override;
  Progress write(const iovec* parts, size_t count) override;
  Progress read(void* into, size_t length) override;

 private:
  // Writing.
  Progress sealAndSend(const iovec* parts, size_t count);
  void sealMore(ContentCursor& content, size_t atMost);
  bool sendSealed(std::string& error);

  // Reading.
  void openInto(void* into, size_t length, Progress& progress);
  bool receive();
  std::optional<std::span<const unsigned char>> nextRecord();
  bool openNext(unsigned char* into, size_t length, size_t& given);
  bool awaitsRest() const;
  void watchForStall();
  void onStall(bool lastLook);
  size_t unopened() const {
    return received_ - opened_;
  }
  size_t unread() const {
    return content_.size() - read_;
  }

  Loop& loop_;
  const std::unique_ptr<Stream> inner_;
  const SealedStreamLimits limits_;
  const std::shared_ptr<const void> registration_; // goes with it
  std::function<void()> ready_;

  // Of whoever writes.
  RecordSealer sealer_;
  std::unique_ptr<unsigned char[]> sealed_; // records that are not all in the inner stream
  size_t room_ = 0, sealedSize_ = 0, sent_ = 0; // of sealed_
  size_t sealedContent_ = 0; // the bytes that are in these records
  std::string writeError_;

  // Loop-bound.
  RecordOpener opener_;
  std::unique_ptr<unsigned char[]> incoming_;
  size_t received_ = 0, opened_ = 0; // of incoming_
  uint64_t arrived_ = 0; // bytes, in all
  std::vector<unsigned char> content_; // of a record that was longer than what was asked for
  size_t read_ = 0; // of content_
  std::string error_; // why there will be no more
  std::optional<uint64_t> stalledAt_; // what had arrived when the watch began; nothing: no watch
  LoopTimer stall_;
};

} // namespace torchwire
