// Two rings in shared memory as a stream.
#pragma once

#include <atomic>
#include <memory>

#include "backend/transport/loop.h"
#include "backend/transport/loop_watch.h"
#include "backend/transport/memory_file.h"
#include "backend/transport/ring.h"
#include "backend/transport/stream.h"

namespace torchwire {

/// The rings carry the bytes. The Unix socket over which the connection was set up stays: a byte on it
/// wakes a side that sleeps, and its end is the end of the peer. See Stream for what may be called where.
class ShmStream final : public Stream, private Loop::Poller {
 public:
  /// The size of the memory that the two ends share.
  static size_t memorySize();

  /// Takes a connected, non-blocking socket. The side that dialed writes into the first ring, the other
  /// into the second.
  ShmStream(Loop& loop, int socket, MemoryFile memory, bool dialed);
  ~ShmStream() override;

  void start(std::function<void()> ready) override;
  void setInterest(bool reading, bool writing) override;
  Progress write(const iovec* parts, size_t count) override;
  Progress read(void* into, size_t length) override;

 private:
  bool poll() override;
  bool armWakeup() override;
  void disarmWakeup() override;
  bool isReady() const;
  void onSocket();
  void sendWakeup();

  Loop& loop_;
  const int socket_;
  const MemoryFile memory_;
  RingWriter writer_;
  RingReader reader_;
  std::unique_ptr<FdWatch> watch_;
  std::function<void()> ready_;
  bool reading_ = false, writing_ = false;
  std::atomic<bool> ended_{false}; // the peer is gone
};

} // namespace torchwire
