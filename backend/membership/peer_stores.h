// The stores that a group's workers serve to each other once the rendezvous store is gone.
//
//   rendezvous store ──gone──▶ that of the lowest rank that lives ──gone──▶ the next rank's ──▶ ... ──▶ the lowest again
//
// Each of these is a place (StorePlace), and each place begins empty. Who cannot go on in one goes on to the next; who begins
// to serve one tells all that live, so that none waits where the others have left. A worker serves whether or not it shuts
// down itself yet.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/membership/clock.h"
#include "backend/membership/local_store.h"
#include "backend/membership/store_request.h"

namespace torchwire {

/// The rounds go on in another place: what was begun in the former one is to be begun anew.
class StoreMoved : public std::runtime_error {
 public:
  StoreMoved() : std::runtime_error("the shutdown goes on in another store") {}
};

/// This worker's part: the store that it serves, and its way to those of others. Thread-safe.
class PeerStores {
 public:
  using Value = KeyValueStore::Value;
  struct Links {
    /// Returns a worker's answer to a request. Throws an exception derived from std::exception if none comes.
    std::function<std::vector<char>(WorkerId server, std::vector<char> request)> ask;
    /// Sends a request of which nobody awaits the answer.
    std::function<void(WorkerId to, std::vector<char> request)> tell;
    /// The other workers that have neither died nor left, for all that is known here.
    std::function<std::set<WorkerId>()> living;
    /// "worker 'w' (rank 1)".
    std::function<std::string(WorkerId)> describe;
  };

  PeerStores(WorkerId self, Links links);

  StorePlace place() const EXCLUDES(mutex_);
  /// Why the rendezvous store is not used any more.
  std::string reason() const EXCLUDES(mutex_);
  /// The other workers that have neither died nor left.
  std::set<WorkerId> living() const {
    return links_.living();
  }

  /// Answers another worker. Throws FormatError.
  std::vector<char> serve(WorkerId caller, const std::vector<char>& bytes) EXCLUDES(mutex_);

  /// Does what is requested, at the request's place. Throws StoreMoved if that is not the place any more.
  StoreAnswer perform(const StoreRequest& request) EXCLUDES(mutex_);

  /// It is of no use to stay at `from`.
  void moveOn(const StorePlace& from, const std::string& why) EXCLUDES(mutex_);

  /// To be called often. Asks those again that live and have not answered. Throws std::runtime_error that names one which
  /// does not for `patience` (0: for ever): it stands still, or cannot be reached, and those who wait would wait for it.
  void expectAnswers(Clock& clock, std::chrono::nanoseconds patience) EXCLUDES(mutex_);

  /// Keeps what stands, so that it stands in each later store that this worker serves, too.
  void keep(const std::string& key, const Value& value) EXCLUDES(mutex_);
  std::map<std::string, Value> kept() const EXCLUDES(mutex_);

  /// Tells those once more that have not asked for what this worker serves. (They may have stood still.)
  void remind() EXCLUDES(mutex_);

 private:
  StorePlace after(const StorePlace& from) const;
  void comeOver(const StorePlace& to, const std::string& why) EXCLUDES(mutex_);
  StoreAnswer operate(WorkerId caller, const StoreRequest& request) EXCLUDES(mutex_);
  StoreAnswer operate(const StoreRequest& request) REQUIRES(mutex_);

  const WorkerId self_;
  const Links links_;
  mutable Mutex mutex_{LockRank::peerStores};
  StorePlace place_ GUARDED_BY(mutex_);
  std::string reason_ GUARDED_BY(mutex_);
  LocalStore store_ GUARDED_BY(mutex_); // that of place_, where this worker serves it
  std::set<WorkerId> callers_ GUARDED_BY(mutex_); // who have asked for it
  // Who have not answered, and since when that is looked at.
  std::map<WorkerId, std::optional<Clock::TimePoint>> silent_ GUARDED_BY(mutex_);
  std::map<std::string, Value> kept_ GUARDED_BY(mutex_);
};

} // namespace torchwire
