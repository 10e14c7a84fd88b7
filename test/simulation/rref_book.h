// The RRefs of one simulated worker: what libtorch's RRefContext and RRefService are in the product.
#pragma once

#include <functional>
#include <map>
#include <set>

#include "rref/ledger/fork_ledger.h"
#include "rref/ledger/orphaned_rrefs.h"
#include "rref/ledger/passed_forks.h"
#include "test/simulation/sender.h"
#include "test/simulation/world.h"

namespace torchwire::simulation {

/// Not thread-safe.
class RRefBook final : public ForkTable {
 public:
  using Answer = std::function<void()>;
  struct User {
    GlobalId rref;
    WorkerId owner = -1;
    uint64_t ownersIncarnation = 0;
    bool held = false; // by the program
    bool pending = false; // the owner does not know it yet
    int children = 0; // that their owner does not know yet
  };
  struct Owned {
    bool hasValue = false;
  };
  using Incarnation = std::function<uint64_t(WorkerId)>;

  RRefBook(World& world, Sender& sender, WorkerId self, int64_t firstId, Incarnation incarnation);

  // ---- what the program does; false: there is nothing of the kind

  bool create(WorkerId to);
  /// `canRead`: whether the receiver knows what it must to read the RRef.
  using CanRead = std::function<bool(WorkerId owner, const GlobalId& rref)>;
  bool pass(uint64_t choice, WorkerId to, bool keep, const CanRead& canRead);
  bool drop(uint64_t choice);
  /// `force`: also those that children keep, as libtorch does when it waits no longer at the end.
  void dropAll(bool force = false);

  // ---- requests

  void serveCreation(WorkerId caller, const Message& request, const Answer& answer);
  /// Returns what lets go what the program does not keep.
  std::function<void()> receive(const Message& request);
  void serveForkRequest(WorkerId caller, const Message& request);
  void serveChildAccept(const Message& request);
  void serveDelete(const Message& request);
  /// Before a message goes out. Returns the forks in it.
  PassedForks::Forks noteSent(WorkerId to, const Message& message);
  /// Of a message that was not sent after all.
  void takeBack(const PassedForks::Forks& forks) {
    reclaim(passed_.take(forks));
  }
  /// Whether a message about this fork need not be sent.
  bool deletesOrphan(const Message& message);

  void workerGone(WorkerId worker, const Error& why);
  void forgetWorker(WorkerId worker) {
    ledger_.forgetWorker(worker);
  }

  // ---- ForkTable
  void add(const GlobalId& rref, const GlobalId& fork) override;
  Released remove(const GlobalId& rref, const GlobalId& fork) override;
  bool awaitsValue(const GlobalId& rref) override;

  // ---- what there is
  const std::map<GlobalId, User>& users() const {
    return users_;
  }
  const std::map<GlobalId, std::set<GlobalId>>& forks() const {
    return forks_;
  }
  const std::map<GlobalId, Owned>& owned() const {
    return owned_;
  }
  const std::map<GlobalId, GlobalId>& children() const {
    return children_;
  }
  const PassedForks& passed() const {
    return passed_;
  }
  const ForkLedger& ledger() const {
    return ledger_;
  }

 private:
  GlobalId draw() {
    return {self_, next_++};
  }
  void confirm(const GlobalId& fork);
  void endChild(const GlobalId& child);
  void deleteIfUnused(const GlobalId& fork);
  void reclaim(const std::vector<PassedForks::Fork>& forks);
  void enter(const Message& request);

  World& world_;
  Sender& sender_;
  const WorkerId self_;
  int64_t next_;
  const Incarnation incarnation_;
  std::map<GlobalId, User> users_; // by fork
  std::map<GlobalId, GlobalId>
      children_; // handed on and not accepted yet, and the fork that it keeps
  std::map<GlobalId, Owned> owned_;
  std::map<GlobalId, std::set<GlobalId>> forks_;
  ForkLedger ledger_;
  PassedForks passed_;
  OrphanedRRefs orphans_;
};

} // namespace torchwire::simulation
