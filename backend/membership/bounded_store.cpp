#include "backend/membership/bounded_store.h"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>

#include "backend/base/fork.h"

namespace torchwire {
namespace {

constexpr std::chrono::microseconds kMinPause{200}; // between two looks

} // namespace

// In a forked child there is no such thread to be joined.
std::shared_ptr<ThreadPool> makeStoreThread() {
  return {new ThreadPool(1, "torchwire_store"), [generation = forkGeneration()](ThreadPool* pool) {
            if (forkGeneration() == generation) {
              delete pool;
            }
          }};
}

BoundedStore::BoundedStore(
    std::unique_ptr<KeyValueStore> store, std::chrono::milliseconds timeout,
    InterruptionCheck check, std::shared_ptr<ThreadPool> thread)
    : store_(std::move(store)),
      timeout_(timeout),
      check_(std::move(check)),
      thread_(std::move(thread)) {}

template <typename Operation>
auto BoundedStore::perform(Operation operation) {
  using Result = decltype(operation(*store_));
  const std::string silence = "no answer within " + std::to_string(timeout_.count()) + " ms";
  if (silent_) {
    throw std::runtime_error(silence);
  }
  // The task lets go of the store before the caller goes on: a file's store that is dropped later would delete the file of
  // the one that has been opened after it.
  std::packaged_task<Result()> task([store = store_, operation = std::move(operation)]() mutable {
    const auto held = std::move(store);
    return operation(*held);
  });
  auto result = task.get_future();
  Task run([keptThread = thread_, task = std::move(task)]() mutable { task(); });
  if (!thread_->run(std::move(run))) {
    run(); // there can be no more threads; the store has a time-out of its own
  }
  if (!await(result)) {
    silent_ = true;
    throw std::runtime_error(silence);
  }
  return result.get();
}

/// False where it takes longer.
template <typename Result>
bool BoundedStore::await(const std::future<Result>& result) {
  const auto end = std::chrono::steady_clock::now() + timeout_;
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    if (result.wait_until(std::min(end, now + kInterruptionInterval)) ==
        std::future_status::ready) {
      return true;
    }
    if (now >= end) {
      return false;
    }
    check_();
  }
}

BoundedStore::Value BoundedStore::compareSet(
    const std::string& key, const Value& expected, const Value& wanted) {
  return perform([=](KeyValueStore& store) { return store.compareSet(key, expected, wanted); });
}

BoundedStore::Value BoundedStore::get(const std::string& key) {
  return perform([=](KeyValueStore& store) { return store.get(key); });
}

BoundedStore::Value BoundedStore::getIfThere(const std::string& key) {
  return perform([=](KeyValueStore& store) { return store.getIfThere(key); });
}

/// The thread is woken once for all looks: to wake it, and be woken by it, takes longer than a look.
BoundedStore::Value BoundedStore::getWithin(
    std::chrono::milliseconds patience, const std::string& key) {
  return perform([=](KeyValueStore& store) {
    const auto begun = std::chrono::steady_clock::now();
    for (;;) {
      Value value = store.getIfThere(key);
      const auto waited = std::chrono::steady_clock::now() - begun;
      if (!value.empty() || waited >= patience) {
        return value;
      }
      std::this_thread::sleep_for(std::max<std::chrono::nanoseconds>(waited / 10, kMinPause));
    }
  });
}

void BoundedStore::set(const std::string& key, const Value& value) {
  perform([=](KeyValueStore& store) { store.set(key, value); });
}

int64_t BoundedStore::add(const std::string& key, int64_t amount) {
  return perform([=](KeyValueStore& store) { return store.add(key, amount); });
}

bool BoundedStore::check(const std::string& key) {
  return perform([=](KeyValueStore& store) { return store.check(key); });
}

bool BoundedStore::checkAll(const std::vector<std::string>& keys) {
  return perform([=](KeyValueStore& store) { return store.checkAll(keys); });
}

std::vector<BoundedStore::Value> BoundedStore::getAll(const std::vector<std::string>& keys) {
  return perform([=](KeyValueStore& store) { return store.getAll(keys); });
}

} // namespace torchwire
