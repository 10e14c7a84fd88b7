#include "test/unit/support/scheduled_store.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace torchwire {

ScheduledStore::ScheduledStore(MemoryStore& store, Scheduler& scheduler, Settings settings)
    : store_(store), scheduler_(scheduler), settings_(std::move(settings)) {}

template <typename Operation>
auto ScheduledStore::perform(Operation operation) {
  if (settings_.maxLatency.count() == 0) {
    scheduler_.yield();
  } else {
    const auto most = static_cast<uint64_t>(settings_.maxLatency.count());
    scheduler_.sleepFor(std::chrono::nanoseconds(1 + scheduler_.draw(most)));
  }
  const uint64_t number = operations_++;
  throwIfGone();
  const uint64_t last = std::min(settings_.breaksAt, settings_.diesAt);
  if (number < last) {
    return operation();
  }
  if (number == last && scheduler_.draw(2) == 0) {
    static_cast<void>(operation()); // it has reached the store, only the answer did not come back
  }
  if (number >= settings_.diesAt) {
    throw Died();
  }
  throw std::runtime_error("connection reset by peer\nand a stack trace");
}

ScheduledStore::Value ScheduledStore::compareSet(
    const std::string& key, const Value& expected, const Value& wanted) {
  return perform([&] {
    Value now = store_.compareSet(key, expected, wanted);
    scheduler_.changed();
    return now;
  });
}

ScheduledStore::Value ScheduledStore::get(const std::string& key) {
  return perform([&] {
    while (!store_.has(key)) {
      scheduler_.waitForChange("get of " + key);
      throwIfGone();
    }
    return store_.get(key);
  });
}

void ScheduledStore::set(const std::string& key, const Value& value) {
  perform([&] {
    store_.set(key, value);
    scheduler_.changed();
    return true;
  });
}

int64_t ScheduledStore::add(const std::string& key, int64_t amount) {
  return perform([&] {
    const int64_t sum = store_.add(key, amount);
    scheduler_.changed();
    return sum;
  });
}

bool ScheduledStore::check(const std::string& key) {
  return perform([&] { return store_.check(key); });
}

bool ScheduledStore::checkAll(const std::vector<std::string>& keys) {
  return perform([&] { return store_.checkAll(keys); });
}

std::vector<ScheduledStore::Value> ScheduledStore::getAll(const std::vector<std::string>& keys) {
  return perform([&] {
    while (!std::all_of(
        keys.begin(), keys.end(), [&](const std::string& key) { return store_.has(key); })) {
      scheduler_.waitForChange("get of " + keys.front() + " and others");
      throwIfGone();
    }
    return store_.getAll(keys);
  });
}

void ScheduledStore::throwIfGone() {
  if (store_.traffic().operations() >= settings_.goneAt || settings_.isGone()) {
    scheduler_.changed(); // those who wait for a key notice, too
    throw std::runtime_error("connection refused\nand a stack trace");
  }
}

} // namespace torchwire
