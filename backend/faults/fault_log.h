// What was injected.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/faults/plan.h"

namespace torchwire::faults {

/// One injected fault.
struct Entry {
  double time = 0; // seconds since 1970, by this worker's clock
  std::string worker; // where it was injected
  uint64_t revision = 0; // of the plan
  std::string rule;
  Action action{};
  Phase phase{};
  std::string from, to; // caller and callee; connect: dialer and accepter
  uint32_t message = 0; // type of the request; connect: 0
  uint64_t callId = 0; // as drawn by the caller; connect: 0
  uint64_t occurrence = 0; // in its stream
  double seconds = 0; // of delay, reorder, pause; partition: until it ends
  uint64_t byte = 0; // corrupt
};

/// Keeps the entries of a worker, and writes each to a file, before the fault happens, so that a worker that is killed
/// leaves its log behind. Thread-safe.
class FaultLog {
 public:
  /// `path`: a file to append to, one JSON object a line; empty: none. Throws std::runtime_error when it
  /// cannot be opened.
  explicit FaultLog(const std::string& path);
  ~FaultLog();
  FaultLog(const FaultLog&) = delete;
  FaultLog& operator=(const FaultLog&) = delete;

  void add(const Entry& entry) EXCLUDES(mutex_);
  std::vector<Entry> entries() const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_{LockRank::faultLog};
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
  const int file_;
};

/// The entry as one line of JSON, with a line break. Keys as the fields above in snake_case; action and phase by
/// name, message as a number.
std::string toJson(const Entry& entry);

} // namespace torchwire::faults
