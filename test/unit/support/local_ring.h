// A ring in this process's own memory.
#pragma once

#include <algorithm>
#include <vector>

#include "backend/transport/ring.h"

namespace torchwire {

/// With a margin around the bytes that nobody may touch. Not thread-safe but for the ring itself.
class LocalRing {
 public:
  explicit LocalRing(size_t capacity)
      : capacity_(capacity), bytes_(capacity + 2 * kMargin, kUntouched) {}

  RingMemory memory() {
    return {&header, bytes_.data() + kMargin, capacity_};
  }
  bool isMarginUntouched() const {
    const auto untouched = [](char byte) { return byte == kUntouched; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kMargin, untouched) &&
        std::all_of(bytes_.end() - kMargin, bytes_.end(), untouched);
  }

  RingHeader header{};

 private:
  static constexpr ptrdiff_t kMargin = 256;
  static constexpr char kUntouched = 0x5a;

  const size_t capacity_;
  std::vector<char> bytes_;
};

} // namespace torchwire
