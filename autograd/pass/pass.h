// This worker's part in one backward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "autograd/pass/local_graph.h"
#include "autograd/pass/pass_messages.h"
#include "autograd/pass/pass_network.h"
#include "backend/base/annotations.h"
#include "backend/base/error.h"

namespace torchwire {

/// Evaluates the local graph as gradients come in, and knows when the worker and all that it woke are idle.
///
/// That is the termination detection of Dijkstra and Scholten ("Termination detection for diffusing computations",
/// 1980): a worker is woken by one request, answers all others at once, and answers that one when nothing is evaluated
/// any more and all of its own requests have been answered. So when the root is idle, the pass rests everywhere. With
/// the answers travels how many send functions still wait: at the root the sum is exact.
///
/// Held by shared_ptr: answers may come long after the pass is over. Thread-safe.
class Pass : public std::enable_shared_from_this<Pass> {
 public:
  using Reply = std::function<void(const Error&, const Report&)>;

  /// What a root hears of its pass. Called without a lock, on the threads that evaluate or bring answers.
  struct RootEvents {
    std::function<void(int64_t waiting)> idle; // perhaps several times, never after `failed`
    std::function<void(const Error&)> failed; // at most once
  };

  /// `over` is called once, when this worker's part has ended, with the error if it has failed: what it held has
  /// been given back.
  Pass(
      const PassId& id, const PassOptions& options, std::unique_ptr<LocalGraph> graph,
      PassNetwork& network, std::function<void(const Error&)> over);

  const PassId& id() const {
    return id_;
  }
  const PassOptions& options() const {
    return options_;
  }
  size_t waiting() const EXCLUDES(mutex_);
  bool resting() const EXCLUDES(mutex_);

  /// From now on the root hears of its pass; then starts its part: evaluates from the roots on the calling thread.
  /// Exactly once each, in this order, perhaps on different threads.
  void prepare(RootEvents events) EXCLUDES(mutex_);
  void run() EXCLUDES(mutex_);

  /// Gradients for a send function have come; evaluates from there on this thread.
  void onGradients(int64_t send, const LocalGraph::Attach& attach, Reply reply) EXCLUDES(mutex_);

  /// Only these send functions get gradients in this pass: for a pass that has not begun.
  void expectOnly(const std::set<int64_t>& reached) EXCLUDES(mutex_);

  /// The same for a pass that has rested: goes on without the others, on this thread.
  void resume(const std::set<int64_t>& reached, Reply reply) EXCLUDES(mutex_);
  void resumeRoot(const std::set<int64_t>& reached) EXCLUDES(mutex_);

  /// A recv function, or the root itself, has sent a request of this pass; its response has come. While the pass is
  /// active.
  void noteSent() EXCLUDES(mutex_);
  void onResponse(const Error& error, const Report& report) EXCLUDES(mutex_);

  /// Ends this worker's part at once; who woke it, or the root, gets the error. Returns what still waited.
  /// Nothing happens when it is over already.
  std::vector<WaitingSend> abort(const Error& error) EXCLUDES(mutex_);

  /// Ends the root's part after success.
  void finish() EXCLUDES(mutex_);

 private:
  void dropAllBut(const std::set<int64_t>& reached) EXCLUDES(mutex_);
  std::vector<int64_t> takeUnreached(const std::set<int64_t>& reached) EXCLUDES(mutex_);
  void onEvaluated() EXCLUDES(mutex_);
  void fail(const Error& error) EXCLUDES(mutex_);
  /// `handedOver`: the gradients, since `active_` was last 0.
  void settle(bool handedOver = false) EXCLUDES(mutex_);
  void handOver() EXCLUDES(mutex_);
  void lookAgain();
  // What to do, unlocked, now that nothing is active.
  std::function<void()> rest() REQUIRES(mutex_);
  std::function<void()> restAtRoot() REQUIRES(mutex_);
  std::vector<WaitingSend> describeWaiting(const std::set<int64_t>& sends) const;
  void end(const Error& error);

  const PassId id_;
  const PassOptions options_;
  const std::unique_ptr<LocalGraph> graph_;
  PassNetwork& network_;
  const std::function<void(const Error&)> onOver_;

  mutable Mutex mutex_{LockRank::pass};
  RootEvents events_ GUARDED_BY(mutex_); // set on a root
  Reply woken_ GUARDED_BY(mutex_); // answers the request that woke this worker; not on a root
  std::set<int64_t> waiting_ GUARDED_BY(mutex_);
  std::set<int64_t> delivered_ GUARDED_BY(mutex_);
  int64_t reported_ GUARDED_BY(mutex_) = 0; // of the waiting ones, in earlier reports
  int64_t below_ GUARDED_BY(mutex_) = 0; // of reports from others that have not been passed on
  size_t active_ GUARDED_BY(mutex_) = 0; // threads that evaluate, and requests without an answer
  bool over_ GUARDED_BY(mutex_) = false;
  Error error_ GUARDED_BY(mutex_);
};

} // namespace torchwire
