// Registries of several workers that talk to each other through thread pools, while calls carry contexts from one to the
// next and back, contexts are released under them, and a worker dies.

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <latch>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "autograd/pass/context_registry.h"
#include "backend/base/thread_pool.h"
#include "test/unit/support/seeds.h"

using namespace torchwire;

namespace {

constexpr int kWorkers = 5;
constexpr int kContexts = 60; // of each worker that lives

/// Thread-safe.
class Worker {
 public:
  Worker(WorkerId self, std::vector<std::unique_ptr<Worker>>& all)
      : self_(self), all_(all), pool_(4, "soak") {
    ContextRegistry::Outside outside;
    outside.take = [this](ContextId id) { return take(id); };
    outside.tell = [this](WorkerId to, ContextId id, ContextRegistry::Told told) {
      tell(to, id, std::move(told));
    };
    outside.peers = [this] { return peers(); };
    outside.gone = [this](ContextId) { ++gone_; };
    registry_ = std::make_shared<ContextRegistry>(std::move(outside), ContextRegistry::Limits());
  }

  /// A call of the context runs here, and perhaps calls on; `from` has sent it.
  void serve(ContextId id, WorkerId from, unsigned seed, int depth) {
    registry_->callBegins(id);
    know(id, from);
    std::mt19937 random(seed);
    if (depth > 0 && random() % 3 != 0) {
      call(id, static_cast<WorkerId>(random() % kWorkers), random(), depth - 1);
    }
    know(id, from); // the response
    registry_->callEnds(id);
  }

  /// Calls another worker and waits for nothing; the response comes on one of its threads, perhaps late.
  void call(ContextId id, WorkerId to, unsigned seed, int depth) {
    know(id, to);
    Worker& callee = *all_[to];
    ++underWay_;
    callee.run([this, &callee, id, to, seed, depth] {
      if (!callee.dead()) {
        callee.serve(id, self_, seed, depth);
        know(id, to); // libtorch reads the response
      } else {
        registry_->ownCallUnanswered(id, to);
      }
      registry_->ownCallEnded(id, to);
      --underWay_;
    });
  }

  void open(ContextId id) {
    registry_->opened(id);
    const MutexLock lock(mutex_);
    container_[id];
  }
  void release(ContextId id) {
    ++releases_;
    registry_->release(id, std::nullopt, [this](bool) { ++done_; });
  }

  void run(Task task) {
    pool_.run(std::move(task));
  }
  void die() {
    dead_ = true;
  }
  bool dead() const {
    return dead_;
  }
  bool atRest() const {
    return underWay_ == 0 && done_ == releases_ && telling_ == 0;
  }
  size_t contexts() const {
    const MutexLock lock(mutex_);
    return container_.size();
  }
  void join() {
    pool_.join();
  }

 private:
  void know(ContextId id, WorkerId worker) {
    const MutexLock lock(mutex_);
    container_[id].insert(worker);
  }
  std::optional<ContextRegistry::Taken> take(ContextId id) {
    const MutexLock lock(mutex_);
    auto node = container_.extract(id);
    return node ? std::optional(ContextRegistry::Taken{std::move(node.mapped()), nullptr})
                : std::nullopt;
  }
  void tell(WorkerId to, ContextId id, ContextRegistry::Told told) {
    Worker& other = *all_[to];
    ++telling_;
    other.run([this, &other, id, told = std::move(told)] {
      if (other.dead()) {
        told(false);
        --telling_;
      } else {
        other.registry_->release(id, self_, [this, told](bool everywhere) {
          told(everywhere);
          --telling_;
        });
      }
    });
  }
  ContextRegistry::Workers peers() const {
    ContextRegistry::Workers others;
    for (WorkerId id = 0; id < kWorkers; ++id) {
      if (id != self_) {
        others.insert(id);
      }
    }
    return others;
  }

  const WorkerId self_;
  std::vector<std::unique_ptr<Worker>>& all_;
  std::shared_ptr<ContextRegistry> registry_;
  mutable Mutex mutex_{LockRank::test};
  std::map<ContextId, ContextRegistry::Workers> container_ GUARDED_BY(mutex_);
  std::atomic<bool> dead_{false};
  std::atomic<int> underWay_{0}, telling_{0}, releases_{0}, done_{0}, gone_{0};
  ThreadPool pool_;
};

void useContexts(Worker& worker, WorkerId self, unsigned seed) {
  std::mt19937 random(seed);
  for (int i = 0; i < kContexts; ++i) {
    const ContextId id = (static_cast<int64_t>(self) << 48) + i;
    worker.open(id);
    const int calls = static_cast<int>(random() % 4);
    for (int c = 0; c < calls; ++c) {
      worker.call(id, static_cast<WorkerId>(random() % kWorkers), random(), 3);
    }
    if (random() % 2 == 0) {
      std::this_thread::yield();
    }
    worker.release(id); // perhaps while all of them are under way
  }
}

} // namespace

TEST_CASE("no context is left once everybody is at rest", "[context_registry_soak]") {
  const bool oneDies = GENERATE(false, true);
  for (const unsigned seed : seeds(5)) {
    INFO("TORCHWIRE_TEST_SEED=" << seed << (oneDies ? ", the last worker dies" : ""));
    std::vector<std::unique_ptr<Worker>> workers;
    for (WorkerId id = 0; id < kWorkers; ++id) {
      workers.push_back(std::make_unique<Worker>(id, workers));
    }
    std::vector<std::thread> threads;
    for (WorkerId id = 0; id < kWorkers - 1; ++id) {
      threads.emplace_back([&, id] { useContexts(*workers[id], id, seed * 31 + id); });
    }
    if (oneDies) {
      std::this_thread::sleep_for(std::chrono::milliseconds(seed));
      workers.back()->die();
    }
    for (auto& thread : threads) {
      thread.join();
    }
    for (int quiet = 0;
         quiet < 3;) { // once more than needed, since they are asked one after the other
      quiet = std::all_of(
                  workers.begin(), workers.end(),
                  [](const auto& w) { return w->dead() || w->atRest(); })
          ? quiet + 1
          : 0;
      std::this_thread::yield();
    }
    for (auto& worker : workers) {
      worker->join();
    }
    for (const auto& worker : workers) {
      CHECK((worker->dead() || worker->contexts() == 0));
    }
  }
}
