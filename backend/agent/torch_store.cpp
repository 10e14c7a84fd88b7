#include "backend/agent/torch_store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <stdexcept>
#include <utility>

#include "backend/agent/quiet_store.h"

namespace torchwire {
namespace {

/// Without the stacks that libtorch's errors have in their text.
template <typename Operation>
auto quietly(Operation operation) {
  const QuietStore scope;
  try {
    return operation();
  } catch (const c10::Error& e) {
    throw std::runtime_error(e.what_without_backtrace());
  }
}

} // namespace

TorchStore::TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

TorchStore::Value TorchStore::compareSet(
    const std::string& key, const Value& expected, const Value& wanted) {
  return quietly([&] { return store_->compareSet(key, expected, wanted); });
}

TorchStore::Value TorchStore::get(const std::string& key) {
  return quietly([&] { return store_->get(key); });
}

void TorchStore::set(const std::string& key, const Value& value) {
  quietly([&] { store_->set(key, value); });
}

int64_t TorchStore::add(const std::string& key, int64_t amount) {
  return quietly([&] { return store_->add(key, amount); });
}

bool TorchStore::check(const std::string& key) {
  return quietly([&] { return store_->check({key}); });
}

bool TorchStore::checkAll(const std::vector<std::string>& keys) {
  return quietly([&] { return store_->check(keys); });
}

std::vector<TorchStore::Value> TorchStore::getAll(const std::vector<std::string>& keys) {
  if (!store_->hasExtendedApi()) {
    return KeyValueStore::getAll(keys);
  }
  return quietly([&] { return store_->multiGet(keys); });
}

std::string hostOfStore(const c10::intrusive_ptr<c10d::Store>& store) {
  c10::intrusive_ptr<c10d::Store> inner = store;
  while (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(inner.get())) {
    inner = prefixed->getUnderlyingStore();
  }
  const auto* tcp = dynamic_cast<c10d::TCPStore*>(inner.get());
  return tcp == nullptr ? std::string() : tcp->getHost();
}

} // namespace torchwire
