// PyTorch's store as Membership's.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

#include "backend/membership/key_value_store.h"

namespace torchwire {

/// Passes each operation on. Not thread-safe, although PyTorch's stores are: a KeyValueStore need not be.
class TorchStore : public KeyValueStore {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store);

  Value compareSet(const std::string& key, const Value& expected, const Value& wanted) override;
  Value get(const std::string& key) override;
  void set(const std::string& key, const Value& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool check(const std::string& key) override;
  bool checkAll(const std::vector<std::string>& keys) override;
  std::vector<Value> getAll(const std::vector<std::string>& keys) override;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

/// The host of the rendezvous store, where it has one (a TCPStore, perhaps behind prefixes), else "".
std::string hostOfStore(const c10::intrusive_ptr<c10d::Store>& store);

} // namespace torchwire
