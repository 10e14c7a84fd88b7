#include "backend/membership/bounded_store.h"

#include <future>
#include <stdexcept>
#include <utility>

namespace torchwire {

BoundedStore::BoundedStore(std::unique_ptr<KeyValueStore> store, std::chrono::milliseconds timeout)
    : store_(std::move(store)),
      timeout_(timeout),
      thread_(std::make_shared<ThreadPool>(1, "torchwire_store")) {}

template <typename Operation>
auto BoundedStore::perform(Operation operation) {
  using Result = decltype(operation(*store_));
  if (timeout_.count() == 0) {
    return operation(*store_);
  }
  const std::string silence = "no answer within " + std::to_string(timeout_.count()) + " ms";
  if (silent_) {
    throw std::runtime_error(silence);
  }
  std::packaged_task<Result()> task(
      [store = store_, operation = std::move(operation)] { return operation(*store); });
  auto result = task.get_future();
  Task run([keptThread = thread_, task = std::move(task)]() mutable { task(); });
  if (!thread_->run(std::move(run))) {
    throw std::runtime_error("no thread could be started to ask it");
  }
  if (result.wait_for(timeout_) != std::future_status::ready) {
    silent_ = true;
    throw std::runtime_error(silence);
  }
  return result.get();
}

BoundedStore::Value BoundedStore::compareSet(
    const std::string& key, const Value& expected, const Value& wanted) {
  return perform([=](KeyValueStore& store) { return store.compareSet(key, expected, wanted); });
}

BoundedStore::Value BoundedStore::get(const std::string& key) {
  return perform([=](KeyValueStore& store) { return store.get(key); });
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

} // namespace torchwire
