// One simulated process: the torch-free core, put together as Agent does it, and a program.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/call/call_table.h"
#include "backend/link/link_manager.h"
#include "backend/link/loopback_link.h"
#include "backend/membership/membership.h"
#include "test/simulation/context_book.h"
#include "test/simulation/rref_book.h"
#include "test/simulation/sender.h"
#include "test/simulation/store_access.h"
#include "test/simulation/world.h"

namespace torchwire::simulation {

/// From its start to its end, by which it is destroyed. Not thread-safe.
class Worker final : public Sender {
 public:
  /// `number`: of the process in the oracle's books.
  Worker(World& world, size_t number, const std::string& address);
  /// As if the process had been killed: nobody is told but by the network.
  ~Worker() override;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Joins the group. False: it cannot, and its process ends.
  bool start();
  /// Leaves in order as soon as it has no calls under way; `left` is told then, and destroys it.
  void leave(std::function<void()> left);
  bool isLeaving() const {
    return leaving_;
  }

  // ---- the program
  struct CallOrder {
    WorkerId to = -1;
    WorkerId then = -1;
    uint32_t padding = 0;
    Terms terms;
  };
  void call(const CallOrder& order, Done done = [](const Error&) {});
  RRefBook& rrefs() {
    return rrefs_;
  }
  ContextBook& contexts() {
    return contexts_;
  }
  void failStore(const StoreFailures& failures) {
    storeFailures_ = failures;
  }

  // ---- of its process
  /// The process of a peer has ended, which this worker can see.
  void onProcessEnd(const WorkerRecord& peer);

  // ---- Sender
  uint64_t request(WorkerId to, Message message, Terms terms, Done done) override;
  void keepBooks(WorkerId to, Message message, std::function<void()> done) override;
  void later(Duration delay, Task task) override;
  bool knows(WorkerId worker) const override {
    return known_.contains(worker);
  }
  std::vector<WorkerId> peers() const override;
  Random& random() override {
    return random_;
  }

  // ---- what there is
  const WorkerRecord& record() const {
    return record_;
  }
  EventQueue::Owner owner() const {
    return owner_;
  }
  size_t number() const {
    return number_;
  }
  std::vector<PeerStatus> status() const {
    return links_->status();
  }
  size_t pendingCalls() const {
    return calls_->size();
  }
  /// Frames of which nobody has said what became of them.
  int64_t pendingSends() const {
    return pendingSends_;
  }
  bool hasKnown(uint64_t incarnation) const {
    return everKnown_.contains(incarnation);
  }
  /// The incarnations that it could not take off the list, since the store did not answer.
  const std::set<uint64_t>& notRemoved() const {
    return notRemoved_;
  }

 private:
  struct Books {
    WorkerId to;
    uint64_t incarnation; // of the callee
    Message message;
    std::function<void()> done;
    std::chrono::milliseconds pause{100};
  };

  void learn(const WorkerRecord& peer);
  LinkManager::Events events();
  bool seesProcessOf(WorkerId peer) const;
  bool hasEnded(const WorkerRecord& worker, bool asksHost) const;
  void watch(const WorkerRecord& peer);
  void onFrame(WorkerId from, const ReceivedFrame& frame);
  Task onPeerLost(
      WorkerId peer, const Error& error, const CallIds& received, const CallIds& unsent);
  void onPeerGone(const WorkerRecord& peer, const Error& error);
  std::optional<Refusal> onUnknownPeer(const Hello& hello);
  void askWhetherItLives(WorkerId peer, const Error& loss);
  void takeOffRoster(const WorkerRecord& dead);

  void serve(WorkerId from, const ReceivedFrame& frame);
  void run(WorkerId from, uint64_t callId, const Message& request);
  void runCall(WorkerId from, const Message& request, const std::function<void()>& answer);
  void respond(WorkerId to, uint64_t callId, uint64_t number, bool failed = false);
  void onEnd(uint64_t number, const Outcome& outcome);
  void trySend(Books books);
  void onBooksEnd(Books books, const Error& error);
  void leaveWhenIdle(std::function<void()> left);
  Error told(const Error& error) const;

  World& world_;
  const size_t number_;
  const EventQueue::Owner owner_;
  Random random_;
  WorkerRecord record_;
  VirtualTimer timer_;
  std::unique_ptr<LinkContext> context_;
  std::shared_ptr<LinkManager> links_;
  const std::shared_ptr<LoopbackLink> loopback_ = std::make_shared<LoopbackLink>();
  std::unique_ptr<CallTable> calls_;
  StoreFailures storeFailures_;
  std::unique_ptr<Membership> membership_;
  std::map<WorkerId, WorkerRecord> known_; // others
  RRefBook rrefs_;
  ContextBook contexts_;
  bool leaving_ = false;
  Time leavingSince_{};
  int64_t pendingSends_ = 0;
  int64_t pendingBooks_ = 0; // requests that are repeated until they are answered
  std::map<uint64_t, Done> active_; // by number: calls whose end has not been told
  std::set<uint64_t> notRemoved_;
  std::set<uint64_t> everKnown_;
};

} // namespace torchwire::simulation
