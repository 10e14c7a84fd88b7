#include "backend/base/one_line.h"

#include <array>
#include <cstdint>
#include <cstdio>

namespace torchwire {
namespace {

constexpr std::string_view kCut = "...";

/// How many bytes the UTF-8 character has that the text begins with; 0: it begins with none.
size_t lengthOfCharacter(std::string_view text, uint32_t& character) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  const size_t length = first < 0x80 ? 1
      : first < 0xc2                 ? 0
      : first < 0xe0                 ? 2
      : first < 0xf0                 ? 3
      : first < 0xf5                 ? 4
                                     : 0;
  if (length == 0 || length > text.size()) {
    return 0;
  }
  character = length == 1 ? first : first & (0x7fU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) {
      return 0;
    }
    character = character << 6U | (byte(i) & 0x3fU);
  }
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool isSurrogate = character >= 0xd800 && character < 0xe000;
  return character < kLeast[length] || isSurrogate || character > 0x10ffff ? 0 : length;
}

/// Also those that end a line or turn the direction of writing, which Unicode has beyond ASCII's.
bool isControl(uint32_t character) {
  return character < 0x20 || (character >= 0x7f && character < 0xa0) || character == 0x2028 ||
      character == 0x2029 || (character >= 0x202a && character <= 0x202e) ||
      (character >= 0x2066 && character <= 0x2069);
}

/// The first of a text, which is not empty.
struct Character {
  uint32_t value = 0;
  const size_t length; // 0: it is none
  const std::string_view bytes;

  explicit Character(std::string_view text)
      : length(lengthOfCharacter(text, value)), bytes(text.substr(0, length == 0 ? 1 : length)) {}

  bool isPrintable() const {
    return length != 0 && !isControl(value);
  }
};

void appendEscaped(std::string& line, std::string_view bytes) {
  for (const char byte : bytes) {
    if (byte == '\n') {
      line += "\\n";
    } else if (byte == '\t') {
      line += ' ';
    } else {
      std::array<char, 5> escape{};
      std::snprintf(escape.data(), escape.size(), "\\x%02x", static_cast<uint8_t>(byte));
      line += escape.data();
    }
  }
}

} // namespace

std::string printableLines(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const Character next(text);
    if (next.isPrintable() || next.bytes == "\n" || next.bytes == "\t") {
      lines += next.bytes;
    } else {
      appendEscaped(lines, next.bytes);
    }
    text.remove_prefix(next.bytes.size());
  }
  return lines;
}

std::string oneLine(std::string_view text, size_t maxBytes) {
  std::string line;
  size_t whole = 0; // as much of the line as leaves room for kCut
  while (!text.empty()) {
    const Character next(text);
    if (next.isPrintable()) {
      line += next.bytes;
    } else {
      appendEscaped(line, next.bytes);
    }
    if (line.size() > maxBytes) {
      line.resize(whole);
      return line.append(kCut);
    }
    if (line.size() + kCut.size() <= maxBytes) {
      whole = line.size();
    }
    text.remove_prefix(next.bytes.size());
  }
  return line;
}

} // namespace torchwire
