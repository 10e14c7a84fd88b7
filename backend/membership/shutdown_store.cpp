#include "backend/membership/shutdown_store.h"

#include <utility>

namespace torchwire {
namespace {

using Operation = StoreRequest::Operation;

constexpr std::chrono::seconds kReminderInterval{1};

StoreRequest requestFor(Operation operation, const std::string& key) {
  StoreRequest request;
  request.operation = operation;
  request.key = key;
  return request;
}

} // namespace

ShutdownStore::ShutdownStore(KeyValueStore& store, Clock& clock) : store_(store), clock_(clock) {}

void ShutdownStore::continueWith(std::shared_ptr<PeerStores> peers) {
  peers_ = std::move(peers);
}

template <typename InStore>
StoreAnswer ShutdownStore::perform(StoreRequest request, InStore inStore) {
  if (!peers_) {
    return inStore();
  }
  follow();
  if (at_.isPeer()) {
    request.place = at_;
    return peers_->perform(request);
  }
  try {
    return inStore();
  } catch (const std::exception& e) {
    peers_->moveOn(at_, e.what());
  }
  follow();
  throw StoreMoved(); // for the compiler: there always is a next place, so that follow() has thrown
}

// What this worker knows to stand must stand there, too: others may not have heard of it.
void ShutdownStore::follow() {
  const StorePlace now = peers_->place();
  if (now == at_) {
    return;
  }
  at_ = now;
  for (const auto& [key, value] : peers_->kept()) {
    StoreRequest request = requestFor(Operation::compareSet, key);
    request.place = at_;
    request.value = value;
    peers_->perform(request);
  }
  throw StoreMoved();
}

ShutdownStore::Value ShutdownStore::compareSet(
    const std::string& key, const Value& expected, const Value& wanted) {
  StoreRequest request = requestFor(Operation::compareSet, key);
  request.expected = expected;
  request.value = wanted;
  return perform(
             std::move(request),
             [&] { return StoreAnswer{at_, store_.compareSet(key, expected, wanted), 0}; })
      .value;
}

ShutdownStore::Value ShutdownStore::get(const std::string& key) {
  return perform(
             requestFor(Operation::get, key), [&] { return StoreAnswer{at_, store_.get(key), 0}; })
      .value;
}

void ShutdownStore::set(const std::string& key, const Value& value) {
  StoreRequest request = requestFor(Operation::set, key);
  request.value = value;
  perform(std::move(request), [&] {
    store_.set(key, value);
    return StoreAnswer{};
  });
}

int64_t ShutdownStore::add(const std::string& key, int64_t amount) {
  StoreRequest request = requestFor(Operation::add, key);
  request.amount = amount;
  return perform(std::move(request), [&] { return StoreAnswer{at_, {}, store_.add(key, amount)}; })
      .number;
}

bool ShutdownStore::check(const std::string& key) {
  remindOthers();
  return perform(requestFor(Operation::check, key), [&] {
           return StoreAnswer{at_, {}, store_.check(key) ? 1 : 0};
         }).number != 0;
}

bool ShutdownStore::checkAll(const std::vector<std::string>& keys) {
  if (at_.isPeer()) {
    return KeyValueStore::checkAll(keys);
  }
  return perform(requestFor(Operation::check, keys.front()), [&] {
           return StoreAnswer{at_, {}, store_.checkAll(keys) ? 1 : 0};
         }).number != 0;
}

std::vector<ShutdownStore::Value> ShutdownStore::getAll(const std::vector<std::string>& keys) {
  if (at_.isPeer()) {
    return KeyValueStore::getAll(keys);
  }
  std::vector<Value> values;
  perform(requestFor(Operation::get, keys.front()), [&] {
    values = store_.getAll(keys);
    return StoreAnswer{};
  });
  return values;
}

void ShutdownStore::keep(const std::string& key, const Value& value) {
  if (peers_) {
    peers_->keep(key, value);
  }
}

bool ShutdownStore::isServedBy(WorkerId self) const {
  return at_.isPeer() ? at_.server == self : self == 0;
}

std::optional<std::set<WorkerId>> ShutdownStore::others() const {
  return at_.isPeer() ? std::optional(peers_->living()) : std::nullopt;
}

bool ShutdownStore::isWanted() const {
  return !at_.isPeer() || !peers_->living().empty();
}

// Who waits asks check() again and again.
void ShutdownStore::remindOthers() {
  if (!peers_ || !at_.isPeer() || clock_.now() < reminded_ + kReminderInterval) {
    return;
  }
  reminded_ = clock_.now();
  peers_->remind();
}

} // namespace torchwire
