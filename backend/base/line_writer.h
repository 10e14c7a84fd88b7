// Lines for somebody who may not read them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "backend/base/annotations.h"

namespace torchwire {

/// Writes lines to a file, on a thread of its own, which the first line starts: whoever has a line never waits for the
/// file, be it a full pipe. Lines that do not fit into the queue are dropped and counted; a line says how many. Thread-safe.
/// Is never destroyed, since its thread may be in the midst of a write for ever; and of use only in the process that has
/// made it.
class LineWriter {
 public:
  /// `maxBytes`: of the lines that wait.
  static LineWriter& make(int file, size_t maxBytes);
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  /// A line with its newline at the end. What is longer than `maxBytes` loses its end.
  void add(std::string line) EXCLUDES(mutex_);
  /// Waits until all lines are written that have been added; false if that takes longer.
  bool flush(std::chrono::milliseconds patience) EXCLUDES(mutex_);

 private:
  LineWriter(int file, size_t maxBytes) : file_(file), maxBytes_(maxBytes) {}
  ~LineWriter() = default;

  void startThread() REQUIRES(mutex_);
  void loop() EXCLUDES(mutex_);
  bool isIdle() const REQUIRES(mutex_);
  std::string takeLine() REQUIRES(mutex_);
  void write(std::string_view text) const;

  const int file_;
  const size_t maxBytes_;
  Mutex mutex_{LockRank::lineWriter};
  std::condition_variable_any added_;
  std::condition_variable_any written_;
  std::deque<std::string> lines_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t dropped_ GUARDED_BY(mutex_) = 0; // since the last line
  bool hasThread_ GUARDED_BY(mutex_) = false;
  bool isWriting_ GUARDED_BY(mutex_) = false;
};

} // namespace torchwire
