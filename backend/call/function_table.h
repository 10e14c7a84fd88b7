// What is counted of the calls of each function, by this worker and of it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/error.h"
#include "backend/call/latency_histogram.h"

namespace torchwire {

/// What a request asks for, as far as its bytes say so.
struct RequestLabel {
  std::string_view kind; // "python", "builtin", "script", "remote", ...
  std::string_view function; // "module.name"; empty where it is not known, or there is none

  bool operator==(const RequestLabel&) const = default;
};

/// The calls of one function. Lives as long as its table. Thread-safe.
class FunctionMetrics {
 public:
  FunctionMetrics(RequestLabel label, uint32_t id)
      : kind(label.kind), function(label.function), id(id) {}

  const std::string kind;
  const std::string function;
  const uint32_t id; // its place in the table

  /// As it stands in sentences: "module.name", or "a remote call".
  std::string describe() const;

  // Made by this worker.
  LatencyHistogram latency; // from when a call is sent until it has been answered or has failed
  LatencyHistogram wire; // of that, what the callee did not have the request
  void failed(ErrorCode code) {
    failures_[static_cast<size_t>(code)].fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t failures(ErrorCode code) const {
    return failures_[static_cast<size_t>(code)].load(std::memory_order_relaxed);
  }

  // Served by this worker.
  LatencyHistogram queue; // from when a request came until it began to run
  LatencyHistogram run; // from then on until its answer was ready
  /// The function has raised, or could not run.
  void countError() {
    errors_.fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t errors() const {
    return errors_.load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<uint64_t>, kErrorCodes> failures_{};
  std::atomic<uint64_t> errors_{0};
};

/// Names functions once. What comes when there are as many as it takes shares one entry of its kind, so that names which
/// a peer makes up cannot fill the memory. Thread-safe.
class FunctionTable {
 public:
  explicit FunctionTable(size_t capacity = 1000) : capacity_(capacity) {}
  FunctionTable(const FunctionTable&) = delete;
  FunctionTable& operator=(const FunctionTable&) = delete;

  FunctionMetrics& find(RequestLabel label) EXCLUDES(mutex_);

  /// By their ids.
  std::vector<const FunctionMetrics*> all() const EXCLUDES(mutex_);

  static constexpr std::string_view kOthers = "(others)";

 private:
  struct Hash {
    size_t operator()(const RequestLabel& label) const {
      return std::hash<std::string_view>()(label.function) ^
          (std::hash<std::string_view>()(label.kind) << 1);
    }
  };

  FunctionMetrics& add(RequestLabel label) REQUIRES(mutex_);

  const size_t capacity_;
  mutable Mutex mutex_{LockRank::functionTable};
  std::deque<FunctionMetrics> functions_ GUARDED_BY(mutex_); // which stay where they are
  // The keys are views of their names.
  std::unordered_map<RequestLabel, FunctionMetrics*, Hash> byLabel_ GUARDED_BY(mutex_);
};

} // namespace torchwire
