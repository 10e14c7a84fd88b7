// Memory of this worker's devices that peers copy tensors from.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/wire/roster.h"
#include "cuda/transfer/device_memory.h"

namespace torchwire::cuda {

/// Lends blocks to peers, which say when they have copied. Some of up to kLargestKept bytes are kept then, for the next
/// tensor of their size, and peers keep them open; others are freed. At most kMostBytes of a device are lent at a time, or
/// one larger block, and no more than kMostKept stay when all have come back. Thread-safe; lend() may be called with locks
/// held, but waits for the device where it allocates.
class LentBlocks {
 public:
  /// CUDA takes smaller allocations from 2 MiB that others share, all of which a peer could read.
  static constexpr size_t kLeastBytes = 2 << 20;
  static constexpr size_t kLargestKept = 64 << 20;
  static constexpr size_t kMostKept = 256 << 20;
  static constexpr size_t kMostBytes = 512 << 20;
  /// How long memory stays as it is that a peer might still copy from, though the connection to it is lost.
  static constexpr std::chrono::seconds kQuarantine{60};

  struct Loan {
    uint64_t id = 0;
    DeviceMemory::Block block;
    bool kept = false; // the borrower need not close it
  };

  /// Frees a block, elsewhere, since that may wait for the device.
  using Release = std::function<void(const DeviceMemory::Block&)>;

  /// `release`: null frees at once.
  explicit LentBlocks(DeviceMemory& memory, Release release = nullptr);
  ~LentBlocks();
  LentBlocks(const LentBlocks&) = delete;
  LentBlocks& operator=(const LentBlocks&) = delete;

  /// None where there is no room. What the block's event stands for comes before what it is filled with. Throws
  /// std::runtime_error where the device has no memory.
  std::optional<Loan> lend(WorkerId to, c10::DeviceIndex device, size_t bytes) EXCLUDES(mutex_);

  /// The peer has copied, or will never hear of the loan. Unknown ones are ignored.
  void giveBack(WorkerId from, uint64_t id) EXCLUDES(mutex_);

  /// What is lent to it stays out of use. Does not wait.
  void peerLost(WorkerId peer) EXCLUDES(mutex_);

  struct Usage {
    size_t lent = 0; // blocks
    size_t bytes = 0; // of them, of those that are kept, and of those in quarantine
  };
  Usage usage() const EXCLUDES(mutex_);

 private:
  struct Lent {
    WorkerId to;
    Loan loan;
  };
  struct Retired {
    Loan loan;
    std::chrono::steady_clock::time_point since;
  };
  using Size = std::pair<c10::DeviceIndex, size_t>;

  std::optional<Loan> fromKept(WorkerId to, const Size& size) REQUIRES(mutex_);
  bool reserve(const Size& size) REQUIRES(mutex_);
  Loan lendAs(WorkerId to, Loan loan) REQUIRES(mutex_);
  std::vector<DeviceMemory::Block> pastQuarantine() REQUIRES(mutex_);

  DeviceMemory& memory_;
  const Release release_;
  mutable Mutex mutex_{LockRank::lentBlocks};
  uint64_t lastId_ GUARDED_BY(mutex_); // of blocks; a kept one has the same each time
  std::map<uint64_t, Lent> lent_ GUARDED_BY(mutex_);
  std::map<Size, std::vector<Loan>> kept_ GUARDED_BY(mutex_); // that nobody has
  std::vector<Retired> retired_ GUARDED_BY(mutex_);
  std::map<c10::DeviceIndex, size_t> inUse_ GUARDED_BY(mutex_); // bytes that are lent or retired
  std::map<c10::DeviceIndex, size_t> toBeKept_
      GUARDED_BY(mutex_); // bytes of kept blocks, lent or not
};

} // namespace torchwire::cuda
