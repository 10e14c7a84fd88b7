// A ring of bytes in shared memory: one writer, one reader, in two processes that do not trust each other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace torchwire {

/// The part of a ring that both ends see, in memory that starts out as zeros. Each field is written by one
/// side; the other checks what it reads, as it might be anything.
struct RingHeader {
  alignas(64) std::atomic<uint64_t> written; // bytes since the beginning, by the writer
  alignas(64) std::atomic<uint64_t> consumed; // bytes since the beginning, by the reader
  // Set by a side that goes to sleep, cleared by the other, which then sends it a wakeup.
  alignas(64) std::atomic<uint32_t> readerSleeps;
  alignas(64) std::atomic<uint32_t> writerSleeps;
};
static_assert(
    std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

/// Where one ring lies. `capacity` is a power of two.
struct RingMemory {
  RingHeader* header;
  char* bytes;
  size_t capacity;
};

/// The writing end. Not thread-safe.
class RingWriter {
 public:
  explicit RingWriter(RingMemory memory) : memory_(memory) {}

  /// Writes as much as there is room for and returns how much that was; nothing when the reader's index
  /// makes no sense. The reader sees the beginning of a long write while its rest is being copied.
  std::optional<size_t> write(const void* data, size_t length);
  /// Whether write() would do something.
  bool isReady() const;
  /// Asks for a wakeup; false if there is something to do already.
  bool requestWakeup();
  /// Takes the request back.
  void cancelWakeup();
  /// Whether the reader has asked for a wakeup; it gets one, so this takes the request back.
  bool takeReaderWakeup();

 private:
  const RingMemory memory_;
  uint64_t written_ = 0; // the header's copy is for the reader, and not read here
};

/// The reading end. Not thread-safe.
class RingReader {
 public:
  explicit RingReader(RingMemory memory) : memory_(memory) {}

  /// As RingWriter, the other way round.
  std::optional<size_t> read(void* into, size_t length);
  bool isReady() const;
  bool requestWakeup();
  void cancelWakeup();
  bool takeWriterWakeup();

 private:
  const RingMemory memory_;
  uint64_t consumed_ = 0;
};

} // namespace torchwire
