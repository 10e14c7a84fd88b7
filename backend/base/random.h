// Numbers that nobody else draws: incarnations, group ids, link ids.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace torchwire {

/// 64 random bits from the operating system. Thread-safe. Throws std::system_error where there are none.
/// Not by std::random_device, which asks the processor and waits for it.
inline uint64_t randomNumber() {
  uint64_t number = 0;
  if (getentropy(&number, sizeof(number)) != 0) {
    throw std::system_error(errno, std::generic_category(), "getentropy");
  }
  return number;
}

} // namespace torchwire
