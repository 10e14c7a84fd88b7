// Evaluates the graphs of stand_in_program.h as libtorch's engine does: by counts of what a function waits for.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "autograd/pass/local_graph.h"
#include "backend/base/annotations.h"
#include "test/unit/support/stand_in_program.h"

namespace torchwire {

/// Thread-safe as LocalGraph says.
class StandInGraph final : public RootGraph {
 public:
  struct Hooks {
    std::function<void(const RemoteSend&, int64_t gradient)> send; // of a recv function
    std::function<void(size_t leaf, int64_t gradient)> accumulate;
    std::function<void()> closed;
  };

  StandInGraph(const StandInPart& part, bool root, Hooks hooks);

  std::vector<int64_t> sends() const override;
  void evaluateRoots() override;
  void evaluate(int64_t send, const Attach& attach) override;
  void drop(const std::vector<int64_t>& sends) override;
  void leaveOut(const std::vector<int64_t>& sends) override {
    drop(sends); // which finds nothing that is ready
  }
  bool busy() const override {
    return devices_.load() > 0;
  }
  void stop() override {
    stopped_ = true;
  }
  std::optional<std::string> error() override;
  std::string functionBehind(int64_t send) const override;
  void close() override;
  std::vector<RemoteSend> walkRoots(GraphWalk& walk) override;

  void setGradient(int64_t send, int64_t gradient) EXCLUDES(mutex_);

  /// As if functions ran on another thread: busy() until the count is back at 0.
  std::atomic<int>& devices() {
    return devices_;
  }

 private:
  struct Ready {
    size_t function;
    int64_t gradient;
  };

  void run(std::vector<Ready> ready) EXCLUDES(mutex_);
  std::vector<Ready> passOn(const StandInFunction& function, int64_t gradient) EXCLUDES(mutex_);
  void raise(size_t function) EXCLUDES(mutex_);

  const StandInPart& part_;
  const bool root_;
  const Hooks hooks_;
  std::atomic<bool> stopped_{false};
  std::atomic<int> devices_{0};
  std::atomic<bool> closed_{false};
  mutable Mutex mutex_{LockRank::test};
  std::map<size_t, size_t> awaited_ GUARDED_BY(mutex_);
  std::map<size_t, int64_t> buffers_ GUARDED_BY(mutex_);
  std::map<int64_t, int64_t> gradients_ GUARDED_BY(mutex_); // by send function
  std::optional<std::string> error_ GUARDED_BY(mutex_);
};

/// Walks as torchwire walks through libtorch's graph. Not thread-safe.
class StandInWalk final : public GraphWalk {
 public:
  explicit StandInWalk(const StandInPart& part) : part_(part) {}

  std::vector<RemoteSend> from(const std::vector<int64_t>& sends) override;
  std::vector<RemoteSend> fromFunctions(std::vector<size_t> functions);

 private:
  const StandInPart& part_;
  std::set<size_t> seen_;
};

} // namespace torchwire
