// When RRefs came into being here, and where in the program.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "backend/base/annotations.h"
#include "rref/ledger/global_id.h"

namespace torchwire {

/// What libtorch does not keep of RRefs: of an owner by the id of its RRef, of a user by the id of its fork.
/// libtorch does not tell when either ends, so the entries of those that have are dropped when somebody who
/// can look says which are left: see wantsSweep(). Thread-safe.
class RRefMetadata {
 public:
  using Clock = std::chrono::steady_clock;
  using Ids = std::unordered_set<GlobalId, GlobalIdHash>;

  struct Entry {
    Clock::time_point since;
    std::string site; // empty: not recorded
  };

  // A creation site may come before the creation itself, whose RRef nobody knows of by then.
  static constexpr std::chrono::seconds kGrace{60};

  /// It is there now, unless it was before. Returns the time that stays recorded.
  Clock::time_point see(const GlobalId& id, Clock::time_point now = Clock::now()) EXCLUDES(mutex_);
  /// It was made there in the program, whether it has been seen or not.
  void placeAt(const GlobalId& id, std::string site, Clock::time_point now = Clock::now())
      EXCLUDES(mutex_);
  std::optional<Entry> find(const GlobalId& id) const EXCLUDES(mutex_);

  /// Whether there are twice as many entries as the last sweep left: then sweeping costs each entry no more than
  /// a constant.
  bool wantsSweep() const EXCLUDES(mutex_);
  /// Drops all entries but those of `alive` and the newest.
  void sweep(const Ids& alive, Clock::time_point now = Clock::now()) EXCLUDES(mutex_);
  size_t size() const EXCLUDES(mutex_);

 private:
  static constexpr size_t kFirstSweep = 1024;

  mutable Mutex mutex_{LockRank::rrefMetadata};
  std::unordered_map<GlobalId, Entry, GlobalIdHash> entries_ GUARDED_BY(mutex_);
  size_t nextSweep_ GUARDED_BY(mutex_) = kFirstSweep;
};

} // namespace torchwire
