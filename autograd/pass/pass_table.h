// The backward passes in which this worker takes part.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autograd/pass/discovery.h"
#include "autograd/pass/local_graph.h"
#include "autograd/pass/pass.h"
#include "autograd/pass/pass_messages.h"
#include "autograd/pass/pass_network.h"
#include "backend/base/annotations.h"

namespace torchwire {

/// Finds or opens the pass that a request belongs to: in a context runs one pass at a time. Remembers, as long as the
/// context lives, which passes have ended, so that a request that was on its way then cannot bring one back to life.
/// Held by shared_ptr: answers may come long after the agent is gone. Thread-safe.
class PassTable : public std::enable_shared_from_this<PassTable> {
 public:
  using DiscoveryReply = std::function<void(const Error&, Discovered)>;
  using EndReply = std::function<void(PassEnded)>;
  using OpenRoot = std::function<std::unique_ptr<RootGraph>(const PassId&)>;
  /// Called when this worker's part in a pass begins, under a lock. What it returns, if anything, is called when that part
  /// has ended, with the error if it has failed: on any thread, without locks.
  using Ended = std::function<void(const Error&)>;
  using Begun = std::function<Ended(const PassId&)>;

  PassTable(GraphSource& graphs, PassNetwork& network, Begun begun = nullptr)
      : graphs_(graphs), network_(network), begun_(std::move(begun)) {}

  /// What a root starts with. Throws std::runtime_error when the context is not here or a pass runs in it, and what
  /// `open` throws. The graph belongs to the pass and lives as long.
  struct Root {
    std::shared_ptr<Pass> pass;
    RootGraph* graph = nullptr;
  };
  Root openRoot(int64_t context, const PassOptions& options, const OpenRoot& open) EXCLUDES(mutex_);

  /// Requests of other workers, or of this one to itself. They evaluate and walk on the calling thread.
  void gradients(
      const GradientsHead& head, const LocalGraph::Attach& attach, const Pass::Reply& reply)
      EXCLUDES(mutex_);
  void discover(const DiscoverRequest& request, const DiscoveryReply& reply) EXCLUDES(mutex_);
  void resume(const PassId& id, const Pass::Reply& reply) EXCLUDES(mutex_);
  void endPass(const EndRequest& request, WorkerId caller, const EndReply& reply) EXCLUDES(mutex_);

  /// Finds the exact set of a pass whose root is here, on all workers that it reaches.
  void discoverFrom(const Root& root, const DiscoveryReply& reply) EXCLUDES(mutex_);
  /// What of this worker a discovery has reached; everything is unreached if there was none.
  std::set<int64_t> reached(const PassId& id) EXCLUDES(mutex_);

  /// The pass that runs in the context; null if none.
  std::shared_ptr<Pass> running(int64_t context) EXCLUDES(mutex_);

  /// The context is gone from this worker: ends its pass.
  void forget(int64_t context, const std::string& why) EXCLUDES(mutex_);

  /// This worker shuts down: ends all passes and lets none begin.
  void forgetAll(const std::string& why) EXCLUDES(mutex_);

  /// A worker is gone: ends the passes that it has started.
  void rootLost(WorkerId root) EXCLUDES(mutex_);

  size_t passesStarted() const {
    return started_.load();
  }

  /// Whether any pass runs here. Takes no lock.
  bool anyRuns() const {
    return running_->load(std::memory_order_relaxed) > 0;
  }

 private:
  struct Context {
    Mutex mutex{LockRank::passContext};
    std::shared_ptr<Pass> running GUARDED_BY(mutex);
    std::shared_ptr<Discovery> discovery GUARDED_BY(mutex);
    // By root, the number of the last pass that is over here, and of the last that the root has given up.
    std::map<WorkerId, uint64_t> ended GUARDED_BY(mutex);
    std::map<WorkerId, uint64_t> toldToEnd GUARDED_BY(mutex);
    Error lastError
        GUARDED_BY(mutex); // of the last pass that is over: what to tell gradients that come late
  };
  using ContextPtr = std::shared_ptr<Context>;

  ContextPtr find(int64_t context) EXCLUDES(mutex_);
  ContextPtr findOrAdd(int64_t context) EXCLUDES(mutex_);
  static bool hasEnded(const Context& context, const PassId& id) REQUIRES(context.mutex);
  std::shared_ptr<Pass> joined(const GradientsHead& head) EXCLUDES(mutex_);
  std::shared_ptr<Pass> makePass(
      const PassId& id, const PassOptions& options, std::unique_ptr<LocalGraph> graph,
      const ContextPtr& context);
  using Count = std::shared_ptr<std::atomic<int>>;
  static void over(const ContextPtr& context, const PassId& id, const Error& error);
  std::shared_ptr<Discovery> discoveryOf(const PassId& id) EXCLUDES(mutex_);
  void forwardDiscover(const PassId& id, const Discovery::Next& next, const DiscoveryReply& reply);
  void forwardEnd(
      const EndRequest& request, WorkerId caller, PassEnded here, const EndReply& reply);
  void broadcastEnd(const EndRequest& request, WorkerId silent);

  GraphSource& graphs_;
  PassNetwork& network_;
  const Begun begun_; // null: nobody wants to know
  std::atomic<uint64_t> started_{0};
  const Count running_ = std::make_shared<std::atomic<int>>(0); // a pass may end after the table
  // Of the last pass whose root is here. Begins with the time, so that a worker which takes the place of one that left
  // does not count from below it.
  std::atomic<uint64_t> lastNumber_{
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                std::chrono::system_clock::now().time_since_epoch())
                                .count())};
  Mutex mutex_{LockRank::passTable};
  std::unordered_map<int64_t, ContextPtr> contexts_ GUARDED_BY(mutex_);
  std::optional<std::string> closed_ GUARDED_BY(mutex_); // why no pass begins any more
};

} // namespace torchwire
