// A simulated worker's way to the store that all share: it takes time, and it may break.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "test/unit/support/memory_store.h"
#include "test/unit/support/scheduler.h"

namespace torchwire {

/// Waits before each operation until the scheduler lets this worker go on, and in get() until the key is
/// there. For bodies of the scheduler.
class ScheduledStore : public KeyValueStore {
 public:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  /// Thrown where the worker's process dies. No std::exception: nothing in a process outlives that.
  struct Died {};

  struct Settings {
    /// Each operation takes a time up to this; 0: none, so that any operation of those who are ready is next.
    std::chrono::nanoseconds maxLatency{0};
    /// The number of the worker's first operation that throws; so do all that follow.
    uint64_t breaksAt = kNever;
    /// The number of the operation at which the worker's process dies.
    uint64_t diesAt = kNever;
    /// As breaksAt, but numbered among those of all workers: the store itself is gone.
    uint64_t goneAt = kNever;
    /// The same, where the number is not known before.
    std::function<bool()> isGone = [] { return false; };
  };

  ScheduledStore(MemoryStore& store, Scheduler& scheduler, Settings settings);

  Value compareSet(const std::string& key, const Value& expected, const Value& wanted) override;
  Value get(const std::string& key) override;
  void set(const std::string& key, const Value& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool check(const std::string& key) override;
  bool checkAll(const std::vector<std::string>& keys) override;
  std::vector<Value> getAll(const std::vector<std::string>& keys) override;

 private:
  template <typename Operation>
  auto perform(Operation operation);
  void throwIfGone();

  MemoryStore& store_;
  Scheduler& scheduler_;
  const Settings settings_;
  uint64_t operations_ = 0;
};

} // namespace torchwire
