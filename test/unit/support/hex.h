// Bytes as digits, for vectors in tests.
#pragma once

#include <cstdio>
#include <span>
#include <string>

namespace torchwire {

inline std::string hex(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

} // namespace torchwire
