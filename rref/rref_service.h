// This worker's side of the RRef protocol. See docs/rref.md.
#pragma once

#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "backend/call/metrics.h"
#include "backend/serve/dispatcher.h"
#include "rref/ledger/fork_ledger.h"
#include "rref/ledger/orphaned_rrefs.h"
#include "rref/ledger/passed_forks.h"
#include "rref/ledger/rref_metadata.h"
#include "rref/own_requests.h"

namespace torchwire {

/// The forks in libtorch's RRefContext. Thread-safe.
class LibtorchForks final : public ForkTable {
 public:
  void add(const GlobalId& rref, const GlobalId& fork) override;
  Released remove(const GlobalId& rref, const GlobalId& fork) override;
  bool awaitsValue(const GlobalId& rref) override;
};

/// Serves the messages about RRefs: libtorch's RRefContext keeps the RRefs, the ledger decides what a
/// message may still do. Held by shared_ptr: an async function may end long after the agent. Thread-safe.
class RRefService : public std::enable_shared_from_this<RRefService> {
 public:
  using JitFuture = torch::distributed::rpc::JitFuture;
  using RRefId = torch::distributed::rpc::RRefId;
  using ForkId = torch::distributed::rpc::ForkId;

  /// The dispatcher runs the functions that create RRefs, and must live while requests come.
  RRefService(const Dispatcher& dispatcher, std::shared_ptr<CallMetrics> metrics)
      : dispatcher_(dispatcher), metrics_(std::move(metrics)), ledger_(forks_) {}

  /// Registers the handlers.
  void serve(Dispatcher& dispatcher);

  /// Takes down that this worker's program has made an RRef, and where (empty: not recorded); tells the
  /// RRef's owner, if that is another worker.
  void noteCreated(
      const c10::intrusive_ptr<torch::distributed::rpc::RRef>& rref, const std::string& site);

  /// Has an RRef that another worker shall own hear of it when its creation fails: `creation` is the future of the
  /// call that makes it, to which nobody has added a callback yet. Does nothing if the call makes none.
  static void watchCreation(JitFuture& creation);
  /// Ends a call of this worker to itself that may create an RRef with an error, by `end`, which completes its
  /// future. Who waits for the RRef's value gets the error too: the request may be lost, and then nothing else ends
  /// the wait. Throws what `end` throws.
  static void failOwnCreation(JitFuture& creation, const std::function<void()>& end);

  /// The ids of RRefs that this process makes go on from a number drawn from `random`, the first time that this is
  /// called.
  static void beginIdsAt(uint64_t random);

  /// The future of the value of an RRef that this worker owns, or will own: it has an error where that will not be.
  c10::intrusive_ptr<JitFuture> valueFor(const RRefId& rref);

  /// A worker has died or left: nobody else would delete the forks that it held, confirm the RRefs that it owned, or
  /// create those that it has handed on before their creation came. Frees values and completes futures, so that it may take
  /// the GIL: call it without locks, on a thread that may block.
  void workerGone(WorkerId worker, const Error& why);

  /// A message is about to go to a worker, perhaps with forks in it, which are returned. If the worker is gone,
  /// reclaimPassed() is to be called for it. On any thread, also with libtorch's locks held.
  PassedForks::Forks notePassed(WorkerId to, const torch::distributed::rpc::Message& message) {
    const std::vector<char>& payload = message.payload();
    return passed_.sent(to, {payload.data(), payload.size()});
  }
  PassedForks& passedForks() {
    return passed_;
  }
  /// Of a request to a worker that fetches the value of an RRef: whether that RRef was another process's, which had the
  /// worker's name and is gone.
  bool asksForOrphan(const torch::distributed::rpc::Message& request) const;
  /// Of a request that deletes this worker's fork of such an RRef: true if it need not be sent.
  bool deletesOrphan(const torch::distributed::rpc::Message& request);

  /// Drops the forks that have gone to a worker which has died or left. As workerGone(), which does it.
  void reclaimPassed(WorkerId gone);
  /// The same for those of a message that nobody has received.
  void takeBack(const PassedForks::Forks& neverReceived);
  /// The same for those that have been pickled for a message that there will not be, unless they are in one.
  void withdraw(const std::vector<PassedForks::Fork>& pickled);
  /// Whether it is a fork of this worker's of an RRef whose owner has died or left.
  bool isOrphan(const GlobalId& fork) const {
    return orphans_.any() && orphans_.has(fork);
  }

  /// Takes out a fork that nobody holds. As above.
  void drop(const GlobalId& rref, const GlobalId& fork) {
    const auto released = ledger_.remove(rref, fork);
  }

  /// A new worker has come in place of one that has died or left.
  void forgetWorker(WorkerId worker) {
    ledger_.forgetWorker(worker);
  }

  const ForkLedger& ledger() const {
    return ledger_;
  }
  RRefMetadata& metadata() {
    return metadata_;
  }

 private:
  using Future = c10::intrusive_ptr<JitFuture>;
  using RunFunction = std::function<Future()>;

  void serveCreation(Dispatcher& dispatcher);
  void serveFetches(Dispatcher& dispatcher);
  void serveForks(Dispatcher& dispatcher);
  void serveOwnMessages(Dispatcher& dispatcher);

  Future failCreation(
      WorkerId caller, const torch::distributed::rpc::Message& request,
      const std::exception_ptr& error);
  void failLostCreation(WorkerId caller, const LostCreation& lost);
  /// What `run` throws becomes the value's error. `type` is that of the RRef, as far as it is known.
  Future create(
      WorkerId caller, const RRefId& rref, const ForkId& fork, const at::TypePtr& type,
      const RunFunction& run);
  void runCreation(
      const RRefId& rref, const ForkId& fork, const at::TypePtr& type, const RunFunction& run);
  void note(const RRefId* rref, const ForkId* fork) const;
  void keepEarlyOwners();
  void abandon(const GlobalId& rref, const Error& why);
  void takeBack(const PassedForks::Fork& fork);
  void sweepMetadata();

  const Dispatcher& dispatcher_;
  const std::shared_ptr<CallMetrics> metrics_;
  LibtorchForks forks_;
  ForkLedger ledger_;
  PassedForks passed_;
  OrphanedRRefs orphans_;
  RRefMetadata metadata_;
};

} // namespace torchwire
