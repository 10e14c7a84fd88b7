// Nodes on a memory network.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/thread_pool.h"
#include "backend/base/timer.h"
#include "backend/call/trace_log.h"
#include "backend/link/link_manager.h"
#include "backend/membership/local_store.h"
#include "backend/membership/membership.h"
#include "backend/node/node.h"
#include "test/unit/support/memory_link.h"
#include "test/unit/support/notifier.h"

namespace torchwire {

/// Processes that end when the test says so. Thread-safe.
class StandInProcesses final : public Processes {
 public:
  bool watch(Key key, const ProcessIdentity& process, Ended ended) override EXCLUDES(mutex_);
  void forget(Key key) override EXCLUDES(mutex_);
  void look(Key key) override EXCLUDES(mutex_);
  bool watches(Key key) const override EXCLUDES(mutex_);

  void end(Key key) EXCLUDES(mutex_);
  /// It runs another program from now on, which the next look finds.
  void replace(Key key) EXCLUDES(mutex_);

 private:
  Ended take(Key key) EXCLUDES(mutex_);

  mutable Mutex mutex_{LockRank::test};
  std::map<Key, Ended> watched_ GUARDED_BY(mutex_);
  std::map<Key, bool> replaced_ GUARDED_BY(mutex_);
};

/// The group's store, which its workers' threads use one at a time.
struct SharedStore {
  Mutex mutex{LockRank::test};
  LocalStore store GUARDED_BY(mutex);
  std::atomic<bool> isGone{false}; // every operation throws
};

/// What nodes of a test need in common.
struct NodeWorld {
  Notifier notifier;
  MemoryNetwork network{notifier, MemoryNetwork::Style::threaded};
  SharedStore store;
};

/// A worker, and a program that answers each request with its text. Thread-safe.
class MemoryNode final : private Node::Program {
 public:
  /// Of a dynamic group, which it joins; meet() makes it known to those that have joined before.
  MemoryNode(NodeWorld& world, WorkerId id) : MemoryNode(world, id, /* worldSize */ 0) {
    join();
  }
  /// Of a static one, all of whose workers join() at the same time.
  MemoryNode(NodeWorld& world, WorkerId id, uint32_t worldSize);
  ~MemoryNode();
  MemoryNode(const MemoryNode&) = delete;
  MemoryNode& operator=(const MemoryNode&) = delete;

  void join();

  const WorkerRecord& record() const {
    return membership_->self();
  }
  StandInProcesses& processes() {
    return processes_;
  }
  Node& node() {
    return node_;
  }
  LinkManager& links() {
    return *node_.links();
  }
  Membership& membership() {
    return *membership_;
  }
  TraceLog& trace() {
    return trace_;
  }

  static constexpr uint32_t kCall = 1; // the type of the program's requests
  /// Calls another worker, and waits for what comes of it: an answer's text, or an error's sentence.
  std::string call(
      const MemoryNode& callee, const std::string& text,
      std::chrono::milliseconds timeout = std::chrono::milliseconds(10000));
  /// What serve() does instead of answering; by default it answers.
  enum class Serving { answers, refuses, keepsSilent };
  void setServing(Serving serving) {
    serving_ = serving;
  }

  /// What workers are told that are no peers yet and say hello; empty: they become peers.
  void setObjection(const std::string& objection) EXCLUDES(mutex_);

  PeerState stateOf(const MemoryNode& peer) const;
  /// What the program has heard, each a word or a sentence: "late <text>", "lost <name>", "gone <why>", "joined <name>".
  std::vector<std::string> heard() const EXCLUDES(mutex_);
  bool hasHeard(const std::string& words) const;
  /// Sentences of the deaths of which it knows.
  std::vector<std::string> deathsHeard() const EXCLUDES(mutex_);
  /// Returns once so many tasks about deaths have run since the start.
  bool awaitDeathTasks(int count);

 private:
  static Node::Settings settingsOf(WorkerId id, bool isStatic);
  void hear(std::string words) EXCLUDES(mutex_);

  bool serve(WorkerId caller, ReceivedFrame request) override;
  bool serveOwn(Task&& task) override;
  void dropResponse(WorkerId from, ReceivedFrame response) override;
  void requestUnsent(WorkerId to) override;
  void await(Waiter& waiter) override;
  std::optional<Refusal> admit(const WorkerRecord& worker) override;
  void peerJoined(const WorkerRecord& peer) override;
  void peerLost(WorkerId peer, const Error& error) override;
  void peerGone(const WorkerRecord& peer, const Error& error) override;
  std::string describe(WorkerId worker) const override;
  std::string nameOf(WorkerId worker) const override;
  std::chrono::milliseconds storeTimeout() const override;

  NodeWorld& world_;
  LinkContext& context_;
  Timer timer_;
  TraceLog trace_;
  ThreadPool control_{4, "control"};
  ThreadPool deathThread_{1, "deaths"};
  StandInProcesses processes_;
  std::unique_ptr<Membership> membership_;
  std::atomic<Serving> serving_{Serving::answers};
  std::atomic<int> deathTasks_{0};
  Node node_;
  mutable Mutex mutex_{LockRank::test};
  std::string objection_ GUARDED_BY(mutex_);
  std::vector<std::string> heard_ GUARDED_BY(mutex_);
  std::vector<std::string> deaths_ GUARDED_BY(mutex_);
};

/// Makes all of them known to each other, and watched.
void meet(const std::vector<MemoryNode*>& nodes);

} // namespace torchwire
