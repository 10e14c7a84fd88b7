// Reading and writing of the little-endian byte strings that travel on links and in the store.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace torchwire {

static_assert(
    std::endian::native == std::endian::little,
    "the wire format is little-endian and read in place");

/// Raised when bytes from outside do not have the form that the protocol promises.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Appends numbers, strings and raw bytes to a buffer. Not thread-safe.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<char>& out) : out_(out) {}

  template <typename T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    raw(&value, sizeof(value));
  }

  /// One byte, 0 or 1.
  void flag(bool value) {
    number(static_cast<uint8_t>(value ? 1 : 0));
  }

  void raw(const void* data, size_t length) {
    const size_t start = out_.size();
    out_.resize(
        start +
        length); // insert() does the same, but makes GCC 12 warn of overflows that cannot be
    if (length > 0) {
      std::memcpy(out_.data() + start, data, length);
    }
  }

  /// Length (u32) and bytes.
  void string(std::string_view text) {
    number(static_cast<uint32_t>(text.size()));
    raw(text.data(), text.size());
  }

  size_t position() const {
    return out_.size();
  }

 private:
  std::vector<char>& out_;
};

/// Takes numbers, strings and raw bytes off a buffer that it does not own.
/// Throws FormatError when the buffer is too short. Not thread-safe.
class ByteReader {
 public:
  ByteReader(const char* data, size_t length) : next_(data), end_(data + length) {}
  explicit ByteReader(const std::vector<char>& bytes) : ByteReader(bytes.data(), bytes.size()) {}

  template <typename T>
  T number() {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    T value;
    std::memcpy(&value, raw(sizeof(T)), sizeof(T));
    return value;
  }

  /// Throws FormatError where it is neither 0 nor 1.
  bool flag() {
    const auto value = number<uint8_t>();
    if (value > 1) {
      throw FormatError("expected 0 or 1, found " + std::to_string(value));
    }
    return value == 1;
  }

  const char* raw(size_t length) {
    if (length > remaining()) {
      throw FormatError(
          "expected " + std::to_string(length) + " more bytes, found " +
          std::to_string(remaining()));
    }
    const char* start = next_;
    next_ += length;
    return start;
  }

  std::string string() {
    const auto length = number<uint32_t>();
    const char* start = raw(length);
    return std::string(start, length);
  }

  /// A count of items that each take at least `itemSize` bytes: refused where so many cannot follow,
  /// so that a wrong count cannot ask for an absurd amount of memory.
  uint32_t count(size_t itemSize) {
    const auto n = number<uint32_t>();
    if (static_cast<uint64_t>(n) * itemSize > remaining()) {
      throw FormatError("a count of " + std::to_string(n) + " exceeds what follows it");
    }
    return n;
  }

  size_t remaining() const {
    return static_cast<size_t>(end_ - next_);
  }

 private:
  const char* next_;
  const char* end_;
};

} // namespace torchwire
