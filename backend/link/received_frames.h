// The receiver's half of a session: what has come.
#pragma once

#include <cstdint>
#include <map>

#include "backend/wire/handshake.h"

namespace torchwire {

/// Knows each numbered frame that has come, so that none is taken twice. Frames come nearly in order: threads that send at
/// the same time may hand theirs to the link in another order than they were numbered. Not thread-safe.
class ReceivedFrames {
 public:
  /// Notes the frame. False if it has come before. Throws FormatError where more gaps are open than threads can have left.
  bool add(uint64_t sequence);

  /// All up to this one has come.
  uint64_t through() const {
    return through_;
  }
  Receipts receipts() const;

 private:
  bool addBeyond(uint64_t sequence);

  uint64_t through_ = 0;
  std::map<uint64_t, uint64_t> beyond_; // ranges, first to last, with a gap before each
};

} // namespace torchwire
