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
#include "backend/transport/sealed_peers.h"
#include "backend/transport/stream.h"
#include "backend/wire/record_cipher.h"

namespace torchwire {

/// Seals what is written straight from the caller's memory, and opens what is read straight into it. What is written counts
/// as taken once its record is all in the inner stream: until then the caller offers the same bytes again. A record that
/// does not open ends the stream; nothing of it is given to the reader. See Stream for what may be called where.
class SealedStream final : public Stream {
 public:
  SealedStream(
      Loop& loop, std::unique_ptr<Stream> inner, const RecordKey& outgoing,
      const RecordKey& incoming, std::shared_ptr<SealedPeers::Arrivals> arrivals = nullptr);

  void start(std::function<void()> ready) override;
  void setInterest(bool reading, bool writing) override;
  Progress write(const iovec* parts, size_t count) override;
  Progress read(void* into, size_t length) override;
  size_t heldBack() const override;
  std::chrono::milliseconds stallPatience() const override;

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
  size_t unopened() const {
    return received_ - opened_;
  }
  size_t unread() const {
    return content_.size() - read_;
  }

  Loop& loop_;
  const std::unique_ptr<Stream> inner_;
  const std::shared_ptr<SealedPeers::Arrivals> arrivals_; // of the peer; or none

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
  std::vector<unsigned char> content_; // of a record that was longer than what was asked for
  size_t read_ = 0; // of content_
  std::string error_; // why there will be no more
};

} // namespace torchwire
