#include "backend/tensorpipe/nop_value.h"

#include <cstdint>
#include <optional>

namespace torchwire {
namespace {

constexpr int kMaxDepth = 32;

// The first byte of a value (libnop's docs/format.md).
constexpr uint8_t kLastPositive = 0x7f, kFirstNegative = 0xc0; // small integers, in themselves
constexpr uint8_t kU8 = 0x80, kU64 = 0x83, kI8 = 0x84, kF32 = 0x88, kF64 = 0x89;
constexpr uint8_t kTable = 0xb5, kError = 0xb6, kHandle = 0xb7, kVariant = 0xb8, kStructure = 0xb9;
constexpr uint8_t kArray = 0xba, kMap = 0xbb, kBinary = 0xbc, kString = 0xbd, kNil = 0xbe;

/// Walks over values. Each of its methods says whether what it was to skip was there.
class Walk {
 public:
  Walk(const char* data, size_t length)
      : at_(reinterpret_cast<const uint8_t*>(data)), end_(at_ + length) {}

  bool isAtEnd() const {
    return at_ == end_;
  }

  bool value(int depth) {
    const auto first = byte();
    if (!first || depth > kMaxDepth) {
      return false;
    }
    if (*first <= kLastPositive || *first >= kFirstNegative || *first == kNil) {
      return true;
    }
    if (*first <= kF64) {
      return bytes(sizeOfNumber(*first));
    }
    switch (*first) {
      case kStructure:
      case kArray:
        return values(count(), 1, depth);
      case kMap:
        return values(count(), 2, depth);
      case kBinary:
      case kString:
        return bytesOf(count());
      case kVariant: // which alternative, and that
        return values(2, 1, depth);
      case kError:
        return value(depth + 1);
      case kHandle: // its type, and which
        return values(2, 1, depth);
      case kTable: // a hash, and entries of an id and bytes
        return value(depth + 1) && values(count(), 2, depth);
      default:
        return false;
    }
  }

 private:
  size_t left() const {
    return static_cast<size_t>(end_ - at_);
  }
  std::optional<uint8_t> byte() {
    return isAtEnd() ? std::nullopt : std::optional(*at_++);
  }
  bool bytes(size_t size) {
    if (size > left()) {
      return false;
    }
    at_ += size;
    return true;
  }
  bool bytesOf(std::optional<uint64_t> size) {
    return size && *size <= left() && bytes(static_cast<size_t>(*size));
  }

  static size_t sizeOfNumber(uint8_t first) {
    if (first == kF32 || first == kF64) {
      return first == kF32 ? 4 : 8;
    }
    return size_t{1} << (first >= kI8 ? first - kI8 : first - kU8);
  }

  /// A number that is not negative, as it is written before what it counts.
  std::optional<uint64_t> count() {
    const auto first = byte();
    if (!first || (*first > kLastPositive && (*first < kU8 || *first > kU64))) {
      return std::nullopt;
    }
    if (*first <= kLastPositive) {
      return *first;
    }
    const size_t size = sizeOfNumber(*first);
    if (size > left()) {
      return std::nullopt;
    }
    uint64_t number = 0;
    for (size_t i = 0; i < size; ++i) {
      number |= uint64_t{at_[i]} << (8 * i);
    }
    at_ += size;
    return number;
  }

  /// Each takes a byte at least, so that no count makes this long.
  bool values(std::optional<uint64_t> items, uint64_t valuesOfEach, int depth) {
    if (!items || *items > left() / valuesOfEach) {
      return false;
    }
    for (uint64_t i = 0; i < *items * valuesOfEach; ++i) {
      if (!value(depth + 1)) {
        return false;
      }
    }
    return true;
  }

  const uint8_t* at_;
  const uint8_t* const end_;
};

} // namespace

bool isNopValue(const char* data, size_t length) {
  Walk walk(data, length);
  return walk.value(0) && walk.isAtEnd();
}

} // namespace torchwire
