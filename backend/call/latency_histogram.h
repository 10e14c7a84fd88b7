// How long things took, counted by length.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace torchwire {

/// Counts durations in buckets, four to each doubling from 4 us on: what is read from it is right to an eighth. Adding one
/// is two additions to memory, takes no lock, and may be done anywhere. Thread-safe.
class LatencyHistogram {
 public:
  /// The last one has all that is longer than two minutes.
  static constexpr size_t kBuckets = 104;

  void add(std::chrono::nanoseconds duration) {
    const int64_t nanoseconds = duration.count() < 0 ? 0 : duration.count();
    counts_[bucketOf(static_cast<uint64_t>(nanoseconds) / 1000)].fetch_add(
        1, std::memory_order_relaxed);
    nanoseconds_.fetch_add(static_cast<uint64_t>(nanoseconds), std::memory_order_relaxed);
  }

  struct Snapshot {
    std::array<uint64_t, kBuckets> counts{};
    std::chrono::nanoseconds sum{0};

    uint64_t count() const;
    /// What so large a part (0 to 1) of all did not exceed; within a bucket as if they lay evenly. 0 where there are none.
    std::chrono::nanoseconds quantile(double part) const;
  };
  /// Not of one instant, where others add meanwhile.
  Snapshot snapshot() const;

  /// What is shorter than this belongs to the bucket, or to one before it. The last one has no such bound.
  static constexpr std::chrono::microseconds boundOf(size_t bucket) {
    if (bucket < kFirst) {
      return std::chrono::microseconds(bucket + 1);
    }
    const size_t doublings = (bucket - kFirst) / kParts;
    return std::chrono::microseconds((kParts + 1 + (bucket - kFirst) % kParts) << doublings);
  }

  static constexpr size_t bucketOf(uint64_t microseconds) {
    if (microseconds < kFirst) {
      return static_cast<size_t>(microseconds);
    }
    const auto doublings = static_cast<size_t>(std::bit_width(microseconds)) - 3;
    const size_t bucket = kFirst + doublings * kParts + ((microseconds >> doublings) % kParts);
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }

 private:
  static constexpr size_t kFirst = 4; // buckets of 1 us each
  static constexpr size_t kParts = 4; // of each doubling

  std::array<std::atomic<uint64_t>, kBuckets> counts_{};
  std::atomic<uint64_t> nanoseconds_{0};
};

} // namespace torchwire
