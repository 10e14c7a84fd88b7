#include "backend/transport/sealed_stream.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace torchwire {
namespace {

// So many records go to the inner stream at a time, few enough to stay in the processor's cache. Of one write first one
// record does, then two, four and so on: the peer opens the first while the next are sealed.
constexpr size_t kRecordsAtOnce = 8;
// A call seals or opens no more, so that other connections have their turn.
constexpr size_t kContentPerTurn = size_t{1} << 20;
constexpr size_t kIncoming = 8 * kMaxRecord;

const char* const kDamaged =
    "what came in is not what the peer has sent: it was changed on the way, by a network that "
    "damages packets or by somebody";

} // namespace

SealedStream::SealedStream(
    Loop& loop, std::unique_ptr<Stream> inner, const RecordKey& outgoing, const RecordKey& incoming,
    std::shared_ptr<SealedPeers::Arrivals> arrivals)
    : loop_(loop),
      inner_(std::move(inner)),
      arrivals_(std::move(arrivals)),
      sealer_(outgoing),
      opener_(incoming) {}

void SealedStream::start(std::function<void()> ready) {
  inner_->start(std::move(ready));
}

void SealedStream::setInterest(bool reading, bool writing) {
  inner_->setInterest(reading, writing);
}

// ---- writing --------------------------------------------------------------------------------------

Progress SealedStream::write(const iovec* parts, size_t count) {
  if (writeError_.empty()) {
    try {
      return sealAndSend(parts, count);
    } catch (const std::exception& e) { // for want of memory
      writeError_ = e.what();
    }
  }
  return {0, writeError_};
}

Progress SealedStream::sealAndSend(const iovec* parts, size_t count) {
  Progress progress;
  ContentCursor content(parts, count);
  content.skip(sealedContent_); // which the caller offers again
  size_t records = 1;
  while (progress.bytes < kContentPerTurn) {
    if (sealedSize_ == 0) {
      if (content.left() == 0) {
        break;
      }
      sealMore(content, records * kMaxRecordContent);
      records = std::min(2 * records, kRecordsAtOnce);
    }
    if (!sendSealed(progress.error)) {
      break;
    }
    progress.bytes += std::exchange(sealedContent_, 0);
  }
  return progress;
}

void SealedStream::sealMore(ContentCursor& content, size_t atMost) {
  const size_t all = std::min(content.left(), atMost);
  const size_t records = (all + kMaxRecordContent - 1) / kMaxRecordContent;
  const size_t needed = all + records * kRecordOverhead;
  if (needed > room_) {
    sealed_ = std::make_unique_for_overwrite<unsigned char[]>(needed);
    room_ = needed;
  }
  for (size_t left = all; left > 0;) {
    const size_t length = std::min(left, kMaxRecordContent);
    sealedSize_ += sealer_.seal(content, length, sealed_.get() + sealedSize_);
    left -= length;
  }
  sealedContent_ = all;
}

/// Whether all that is sealed is in the inner stream.
bool SealedStream::sendSealed(std::string& error) {
  while (sent_ < sealedSize_) {
    const iovec part{sealed_.get() + sent_, sealedSize_ - sent_};
    const Progress progress = inner_->write(&part, 1);
    sent_ += progress.bytes;
    if (!progress.error.empty() || progress.bytes == 0) {
      error = progress.error;
      return false;
    }
  }
  sealedSize_ = sent_ = 0;
  return true;
}

// ---- reading --------------------------------------------------------------------------------------

Progress SealedStream::read(void* into, size_t length) {
  loop_.expectOnLoop();
  Progress progress;
  try {
    openInto(into, length, progress);
  } catch (const std::exception& e) { // for want of memory
    error_ = e.what();
  }
  if (progress.bytes == 0) {
    progress.error = error_;
  }
  return progress;
}

void SealedStream::openInto(void* into, size_t length, Progress& progress) {
  auto* at = static_cast<unsigned char*>(into);
  length = std::min(length, kContentPerTurn);
  while (progress.bytes < length) {
    if (unread() == 0 && !openNext(at, length, progress.bytes)) {
      break;
    }
    const size_t here = std::min(unread(), length - progress.bytes);
    if (here > 0) {
      std::memcpy(at + progress.bytes, content_.data() + read_, here);
      read_ += here;
      progress.bytes += here;
    }
  }
}

/// Opens a record behind the `given` bytes of `into`, if there is room for all of it, else into content_. False: there is
/// none.
bool SealedStream::openNext(unsigned char* into, size_t length, size_t& given) {
  const auto record = nextRecord();
  if (!record) {
    return false;
  }
  const size_t content = record->size() - kRecordOverhead;
  const bool direct = content <= length - given;
  if (!direct) {
    content_.resize(content);
  }
  read_ = content_.size(); // not to be read unless it opens
  if (!opener_.open(*record, direct ? into + given : content_.data())) {
    error_ = kDamaged;
    return false;
  }
  opened_ += record->size();
  if (direct) {
    given += content;
  } else {
    read_ = 0;
  }
  return true;
}

/// Nothing: it is not all there, or there is none any more.
std::optional<std::span<const unsigned char>> SealedStream::nextRecord() {
  while (error_.empty()) {
    const std::span<const unsigned char> there(incoming_.get() + opened_, unopened());
    size_t content = 0;
    if (there.size() >= kRecordHeader && !RecordOpener::readHeader(there, content)) {
      error_ = kDamaged;
    } else if (there.size() >= kRecordHeader && there.size() >= content + kRecordOverhead) {
      return there.first(content + kRecordOverhead);
    } else if (!receive()) {
      break;
    }
  }
  return std::nullopt;
}

/// Whether there was something.
bool SealedStream::receive() {
  if (!incoming_) {
    incoming_ = std::make_unique_for_overwrite<unsigned char[]>(kIncoming);
  }
  if (opened_ != 0) { // what is left is a part of a record
    std::memmove(incoming_.get(), incoming_.get() + opened_, unopened());
    received_ -= std::exchange(opened_, 0);
  }
  const Progress progress = inner_->read(incoming_.get() + received_, kIncoming - received_);
  received_ += progress.bytes;
  if (arrivals_) {
    arrivals_->fetch_add(progress.bytes, std::memory_order_relaxed);
  }
  if (progress.bytes == 0) {
    error_ = progress.error;
  }
  return progress.bytes > 0;
}

/// What there is of a record that has begun. Whole ones may wait for a reader as long as that likes.
size_t SealedStream::heldBack() const {
  const std::span<const unsigned char> there(incoming_.get() + opened_, unopened());
  size_t content = 0;
  const bool isWhole =
      RecordOpener::readHeader(there, content) && there.size() >= content + kRecordOverhead;
  return isWhole ? 0 : there.size();
}

std::chrono::milliseconds SealedStream::stallPatience() const {
  return inner_->stallPatience();
}

} // namespace torchwire
