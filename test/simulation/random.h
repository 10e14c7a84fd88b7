// Numbers that a seed decides.
#pragma once

#include <cstdint>

namespace torchwire::simulation {

/// SplitMix64. Whatever draws for its own purpose has one of its own, so that a run that lacks a step is otherwise much the
/// same. Not thread-safe.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t purpose = 0) : state_(mix(seed ^ mix(purpose))) {}

  uint64_t next() {
    return mix(state_ += kStep);
  }
  /// From 0 to `bound` - 1.
  uint64_t below(uint64_t bound) {
    return next() % bound;
  }
  /// From `low` to `high`.
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low + 1)));
  }
  /// Once in so many times.
  bool oneIn(uint64_t times) {
    return below(times) == 0;
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15U;

  static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }

  uint64_t state_;
};

} // namespace torchwire::simulation
