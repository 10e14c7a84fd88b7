#include "backend/agent/torch_store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <utility>

namespace torchwire {

TorchStore::TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

TorchStore::Value TorchStore::compareSet(
    const std::string& key, const Value& expected, const Value& wanted) {
  return store_->compareSet(key, expected, wanted);
}

TorchStore::Value TorchStore::get(const std::string& key) {
  return store_->get(key);
}

void TorchStore::set(const std::string& key, const Value& value) {
  store_->set(key, value);
}

int64_t TorchStore::add(const std::string& key, int64_t amount) {
  return store_->add(key, amount);
}

bool TorchStore::check(const std::string& key) {
  return store_->check({key});
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
