// One simulated process: a Node, what Agent puts around it, and a program.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/call/trace_log.h"
#include "backend/link/loopback_link.h"
#include "backend/membership/membership.h"
#include "backend/node/node.h"
#include "backend/node/retried_requests.h"
#include "test/simulation/context_book.h"
#include "test/simulation/processes.h"
#include "test/simulation/rref_book.h"
#include "test/simulation/sender.h"
#include "test/simulation/store_access.h"
#include "test/simulation/world.h"

namespace torchwire::simulation {

/// From its start to its end, by which it is destroyed. Not thread-safe.
class Worker final : public Sender, private Node::Program {
 public:
  /// Destroys the worker: called once, when it has left in order, or has ended since the others take it for dead.
  using Over = std::function<void(bool inOrder)>;
  /// `number`: of the process in the oracle's books.
  Worker(World& world, size_t number, const std::string& address, Over over);
  /// As if the process had been killed: nobody is told but by the network.
  ~Worker() override;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Joins the group. False: it cannot, and its process ends.
  bool start();
  /// Leaves in order as soon as it has no calls under way.
  void leave();
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

  /// A process has ended.
  void processEnded(const WorkerRecord& process) {
    processes_.ended(process.process.pid);
  }

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
    return node_.links()->status();
  }
  /// Requests that are repeated until they are answered.
  int64_t pendingBooks() const {
    return pendingBooks_;
  }
  size_t pendingCalls() const {
    return node_.calls().size();
  }
  /// Responses and first dials of which nobody has said what became of them.
  int64_t pendingSends() const {
    return pendingSends_;
  }
  bool hasKnown(uint64_t incarnation) const {
    return everKnown_.contains(incarnation);
  }
  /// The incarnations that it may not have taken off the list, since the store did not answer.
  const std::set<uint64_t>& notRemoved() const {
    return notRemoved_;
  }

 private:
  Node::Settings nodeSettings();
  Node::Parts nodeParts();
  RetriedRequests::Worker booksWorker();
  StoreNotes storeNotes();
  bool runDeathTask(Task&& task);
  void learn(const WorkerRecord& peer);
  bool hasEnded(const WorkerRecord& worker, bool asksHost) const;
  void noteStoreFailure();
  void noteDeaths(const std::string& key);

  // ---- Node::Program
  bool serve(WorkerId caller, ReceivedFrame request) override;
  bool serveOwn(Task&& task) override;
  void dropResponse(WorkerId from, ReceivedFrame response) override;
  void requestUnsent(WorkerId /*to*/) override {}
  void await(Waiter& waiter) override;
  std::optional<Refusal> admit(const WorkerRecord& worker) override;
  void peerJoined(const WorkerRecord& peer) override;
  void peerLost(WorkerId peer, const Error& error) override;
  void peerGone(const WorkerRecord& peer, const Error& error) override;
  std::string describe(WorkerId worker) const override;
  std::string nameOf(WorkerId worker) const override;
  std::chrono::milliseconds storeTimeout() const override;

  using Completion = CallTable::Completion;
  uint64_t send(WorkerId to, Message message, Terms terms, Completion completion);
  void onEnd(uint64_t number, torchwire::Outcome outcome);
  void run(WorkerId from, uint64_t callId, const Message& request);
  void runCall(WorkerId from, const Message& request, const std::function<void()>& answer);
  void respond(WorkerId to, uint64_t callId, uint64_t number, bool failed = false);
  void leaveWhenIdle();
  void endIfDeclaredDead();
  void end(bool inOrder);

  World& world_;
  const size_t number_;
  const EventQueue::Owner owner_;
  Random random_;
  const WorkerRecord record_;
  const Over over_;
  VirtualTimer timer_;
  TraceLog trace_;
  std::unique_ptr<LinkContext> context_;
  const std::shared_ptr<LoopbackLink> loopback_ = std::make_shared<LoopbackLink>();
  SimulatedProcesses processes_;
  StoreFailures storeFailures_;
  Membership membership_;
  Node node_;
  RetriedRequests books_;
  std::set<WorkerId> known_; // others
  RRefBook rrefs_;
  ContextBook contexts_;
  Time deathTasks_{}; // when the last one runs
  bool leaving_ = false;
  bool ending_ = false; // as one that has been declared dead
  Time leavingSince_{};
  int64_t pendingSends_ = 0;
  int64_t pendingBooks_ = 0; // requests that are repeated until they are answered
  std::map<uint64_t, Completion> active_; // by number: calls whose end has not been told
  std::set<uint64_t> notRemoved_;
  std::set<uint64_t> everKnown_;
};

} // namespace torchwire::simulation
