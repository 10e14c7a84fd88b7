// The store in which the rounds of a shutdown are held: the rendezvous store, or, once that is gone, a worker's.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/membership/clock.h"
#include "backend/membership/key_value_store.h"
#include "backend/membership/peer_stores.h"

namespace torchwire {

/// Goes on to the workers' stores, once and for good, when the rendezvous store fails or another worker has gone on. Each
/// operation throws StoreMoved where the rounds have moved to another place since the one before: that one is empty, but for
/// what was kept. Without peers' stores, it is the rendezvous store.
class ShutdownStore : public KeyValueStore {
 public:
  ShutdownStore(KeyValueStore& store, Clock& clock);

  /// Before the first operation.
  void continueWith(std::shared_ptr<PeerStores> peers);

  Value compareSet(const std::string& key, const Value& expected, const Value& wanted) override;
  Value get(const std::string& key) override;
  void set(const std::string& key, const Value& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool check(const std::string& key) override;
  bool checkAll(const std::vector<std::string>& keys) override;
  std::vector<Value> getAll(const std::vector<std::string>& keys) override;

  /// Brings what stands along to every later place.
  void keep(const std::string& key, const Value& value);

  /// Whether others may depend on this worker for the store: that of `self`, or the rendezvous store, which PyTorch's
  /// launchers put into the process of rank 0.
  bool isServedBy(WorkerId self) const;
  /// Where that is a worker's: all other workers that have neither died nor left. Nobody can come any more.
  std::optional<std::set<WorkerId>> others() const;
  /// Whether somebody else is left who could ask for it.
  bool isWanted() const;

 private:
  template <typename InStore>
  StoreAnswer perform(StoreRequest request, InStore inStore);
  void follow();
  void remindOthers();

  KeyValueStore& store_;
  Clock& clock_;
  std::shared_ptr<PeerStores> peers_; // null: there is only the rendezvous store
  StorePlace at_;
  Clock::TimePoint reminded_;
};

} // namespace torchwire
