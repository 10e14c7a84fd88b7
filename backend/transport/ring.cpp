#include "backend/transport/ring.h"

#include <algorithm>
#include <cstring>

namespace torchwire {
namespace {

// How much is copied before the other side is told: while it copies this out, the next part is copied in.
constexpr size_t kStep = size_t{64} << 10;

/// The part of [index, index + length) that does not wrap around.
size_t contiguous(const RingMemory& memory, uint64_t index, size_t length) {
  return std::min(length, memory.capacity - static_cast<size_t>(index & (memory.capacity - 1)));
}

char* at(const RingMemory& memory, uint64_t index) {
  return memory.bytes + (index & (memory.capacity - 1));
}

bool takeRequest(std::atomic<uint32_t>& sleeps) {
  // Orders the index that was published before against the look at the flag; the sleeper does the same
  // the other way round, so that one of the two sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return sleeps.load(std::memory_order_relaxed) != 0 && sleeps.exchange(0) != 0;
}

void setRequest(std::atomic<uint32_t>& sleeps) {
  if (sleeps.load(std::memory_order_relaxed) == 0) {
    sleeps.store(1, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// The other side may have seen the request before, and send a wakeup all the same.
void cancelRequest(std::atomic<uint32_t>& sleeps) {
  if (sleeps.load(std::memory_order_relaxed) != 0) {
    sleeps.store(0, std::memory_order_relaxed);
  }
}

} // namespace

std::optional<size_t> RingWriter::write(const void* data, size_t length) {
  size_t done = 0;
  while (done < length) {
    const uint64_t used = written_ - memory_.header->consumed.load(std::memory_order_acquire);
    if (used > memory_.capacity) {
      return std::nullopt;
    }
    const size_t room = memory_.capacity - static_cast<size_t>(used);
    const size_t part = contiguous(memory_, written_, std::min({room, length - done, kStep}));
    if (part == 0) {
      break;
    }
    std::memcpy(at(memory_, written_), static_cast<const char*>(data) + done, part);
    written_ += part;
    done += part;
    memory_.header->written.store(written_, std::memory_order_release);
  }
  return done;
}

bool RingWriter::isReady() const { // also when the index makes no sense: then write() tells
  return written_ - memory_.header->consumed.load(std::memory_order_acquire) != memory_.capacity;
}

bool RingWriter::requestWakeup() {
  setRequest(memory_.header->writerSleeps);
  return !isReady();
}

void RingWriter::cancelWakeup() {
  cancelRequest(memory_.header->writerSleeps);
}

bool RingWriter::takeReaderWakeup() {
  return takeRequest(memory_.header->readerSleeps);
}

std::optional<size_t> RingReader::read(void* into, size_t length) {
  size_t done = 0;
  while (done < length) {
    const uint64_t available = memory_.header->written.load(std::memory_order_acquire) - consumed_;
    if (available > memory_.capacity) {
      return std::nullopt;
    }
    const size_t part = contiguous(
        memory_, consumed_, std::min({static_cast<size_t>(available), length - done, kStep}));
    if (part == 0) {
      break;
    }
    std::memcpy(static_cast<char*>(into) + done, at(memory_, consumed_), part);
    consumed_ += part;
    done += part;
    memory_.header->consumed.store(consumed_, std::memory_order_release);
  }
  return done;
}

bool RingReader::isReady() const {
  return memory_.header->written.load(std::memory_order_acquire) != consumed_;
}

bool RingReader::requestWakeup() {
  setRequest(memory_.header->readerSleeps);
  return !isReady();
}

void RingReader::cancelWakeup() {
  cancelRequest(memory_.header->readerSleeps);
}

bool RingReader::takeWriterWakeup() {
  return takeRequest(memory_.header->writerSleeps);
}

} // namespace torchwire
