// A store whose answers are waited for only so long.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/interruption.h"
#include "backend/base/thread_pool.h"
#include "backend/membership/key_value_store.h"

namespace torchwire {

/// A thread for the operations of one or more of these stores: to start one takes as long as an operation.
std::shared_ptr<ThreadPool> makeStoreThread();

/// Passes each operation on to a store that may not answer at all: PyTorch's clients wait for ever for a server that stands
/// still, or whose network is cut. An operation that takes longer than the time-out throws, and so do all later ones at
/// once. It runs on `thread`, or on one of the store's own, which an operation that never ends keeps, and the store with it. A
/// thread that waits makes the check meanwhile, which may throw Interrupted.
/// Thread-safe if the store is.
class BoundedStore : public KeyValueStore {
 public:
  BoundedStore(
      std::unique_ptr<KeyValueStore> store, std::chrono::milliseconds timeout,
      InterruptionCheck check = [] {}, std::shared_ptr<ThreadPool> thread = makeStoreThread());

  Value compareSet(const std::string& key, const Value& expected, const Value& wanted) override;
  Value get(const std::string& key) override;
  Value getIfThere(const std::string& key) override;
  Value getWithin(std::chrono::milliseconds patience, const std::string& key) override;
  void set(const std::string& key, const Value& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool check(const std::string& key) override;
  bool checkAll(const std::vector<std::string>& keys) override;
  std::vector<Value> getAll(const std::vector<std::string>& keys) override;

 private:
  template <typename Operation>
  auto perform(Operation operation);
  template <typename Result>
  bool await(const std::future<Result>& result);

  const std::shared_ptr<KeyValueStore> store_;
  const std::chrono::milliseconds timeout_;
  const InterruptionCheck check_;
  // Shared with what it runs: it may never end, and must not be waited for then.
  const std::shared_ptr<ThreadPool> thread_;
  std::atomic<bool> silent_{false};
};

} // namespace torchwire
