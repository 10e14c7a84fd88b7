// Numbers that nobody else draws: incarnations, group ids, link ids.
#pragma once

#include <cstdint>
#include <random>

namespace torchwire {

/// 64 random bits from the operating system. Thread-safe.
inline uint64_t randomNumber() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

} // namespace torchwire
