// Workers whose engines run on stand-in graphs and links in memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "autograd/pass/pass_network.h"
#include "autograd/pass/pass_table.h"
#include "backend/base/annotations.h"
#include "backend/base/thread_pool.h"
#include "backend/base/timer.h"
#include "test/unit/support/stand_in_graph.h"
#include "test/unit/support/stand_in_program.h"

namespace torchwire {

class StandInWorker;

/// Workers that share a program. Requests and answers are served on a few threads, in any order: some are delayed.
class StandInWorkers {
 public:
  struct Faults {
    unsigned seed = 1;
    bool delay = true;
    double duplicate = 0; // of gradients
  };

  StandInWorkers(StandInProgram program, Faults faults);
  ~StandInWorkers();
  StandInWorkers(const StandInWorkers&) = delete;
  StandInWorkers& operator=(const StandInWorkers&) = delete;

  /// Runs a pass from worker 0 and waits for its end.
  Error backward(bool smart, std::chrono::milliseconds timeout = std::chrono::milliseconds(0));
  /// Starts one, from any worker; `done` is called at its end. Throws what openRoot throws.
  /// `prepare` gets the root's graph before anything is evaluated.
  void start(
      WorkerId root, bool smart, std::chrono::milliseconds timeout,
      std::function<void(const Error&)> done,
      const std::function<void(StandInGraph&)>& prepare = nullptr);

  /// What has been accumulated, over all passes.
  StandInProgram::Gradients gradients() const EXCLUDES(mutex_);
  /// How many graphs are open.
  int open() const {
    return open_.load();
  }
  size_t gradientRequests() const {
    return gradientRequests_.load();
  }
  size_t ownRequests() const {
    return ownRequests_.load();
  }
  PassTable& table(WorkerId worker);
  /// Requests to this worker fail from now on.
  void kill(WorkerId worker) EXCLUDES(mutex_);

  static constexpr int64_t kContext = 7;

 private:
  friend class StandInWorker;

  /// Runs the task on some thread, perhaps after a while.
  void post(Task task) EXCLUDES(mutex_);
  bool isDead(WorkerId worker) const EXCLUDES(mutex_);
  bool chance(double probability) EXCLUDES(mutex_);
  void sendGradient(WorkerId from, const RemoteSend& to, int64_t gradient);

  StandInProgram program_;
  const Faults faults_;
  Timer timer_;
  ThreadPool pool_;
  std::atomic<int> open_{0};
  std::atomic<size_t> gradientRequests_{0};
  std::atomic<size_t> ownRequests_{0};
  mutable Mutex mutex_{LockRank::test};
  std::mt19937 random_ GUARDED_BY(mutex_);
  std::set<WorkerId> dead_ GUARDED_BY(mutex_);
  StandInProgram::Gradients gradients_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<StandInWorker>> workers_;
};

/// One of them.
class StandInWorker final : public GraphSource, public PassNetwork {
 public:
  StandInWorker(StandInWorkers& all, WorkerId id)
      : all_(all), id_(id), table_(std::make_shared<PassTable>(*this, *this)) {}

  PassTable& table() {
    return *table_;
  }
  const std::shared_ptr<PassTable>& sharedTable() {
    return table_;
  }
  std::unique_ptr<StandInGraph> graph(bool root);
  StandInGraph* openGraph() EXCLUDES(mutex_);

  // GraphSource
  bool has(int64_t) override {
    return true;
  }
  std::unique_ptr<LocalGraph> open(const PassId&, const PassOptions&) override {
    return graph(false);
  }
  std::unique_ptr<GraphWalk> walk(int64_t) override;
  std::vector<WorkerId> knownWorkers(int64_t) override;

  // PassNetwork
  WorkerId self() const override {
    return id_;
  }
  std::vector<WorkerId> peers() const override;
  std::string describe(WorkerId worker) const override {
    return "worker '" + std::to_string(worker) + "'";
  }
  void request(
      WorkerId to, PassRequest kind, std::vector<char> body, std::chrono::milliseconds,
      Answer answer) override;
  void later(std::chrono::milliseconds delay, Task task) override;
  void soon(Task task) override;

 private:
  void serve(
      WorkerId caller, PassRequest kind, const std::vector<char>& body, const Answer& answer);

  StandInWorkers& all_;
  const WorkerId id_;
  const std::shared_ptr<PassTable> table_;
  Mutex mutex_{LockRank::test};
  StandInGraph* graph_ GUARDED_BY(mutex_) = nullptr; // the last one opened
};

} // namespace torchwire
