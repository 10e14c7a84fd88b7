// Workers on a memory network, for tests of the link manager.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/link/link_manager.h"
#include "test/unit/support/callback_ledger.h"
#include "test/unit/support/memory_link.h"

namespace torchwire {

/// A request frame with this text as its body, and the text of one that arrived.
OutgoingFrame textFrame(const std::string& text);
std::string textOf(const IncomingFrame& frame);

/// What workers of a test need in common.
struct World {
  explicit World(MemoryNetwork::Style style = MemoryNetwork::Style::pumped)
      : network(ledger.notifier(), style) {}
  ~World() {
    timer.stop(); // its tasks use the contexts of the network
  }

  CallbackLedger ledger; // goes last: by then every callback has been called or dropped
  MemoryNetwork network;
  Timer timer;
};

/// Limits of which only the retry delay is ever waited for.
LinkManager::Limits quickLimits();
/// The same with sessions that last for so long.
LinkManager::Limits sessionLimits(std::chrono::milliseconds sessionTimeout);

struct WorkerSettings {
  LinkManager::Limits limits = quickLimits();
  uint64_t groupId = 77;
  std::string torchVersion = "2.11.0";
  uint64_t incarnation = 0; // 0: 1000 and the id
  std::string address; // empty: "memory://" and the name
  LinkContext* context = nullptr; // none: the network's
  std::function<std::optional<Refusal>(const Hello&)> unknownPeer;
  bool reclaims =
      true; // what is left of a peer that is gone, at once; else the test calls reclaimed()
  // What to do when an event comes, after it was noted.
  std::function<void(const std::string& text)> onFrame;
  std::function<void(const Error&)> onLost;
  std::function<void()> onCallsFailed; // once the loss has been reported
};

/// A link manager and what it reported. Leaves and ends its links when destroyed. Thread-safe.
class MemoryWorker {
 public:
  struct Arrival {
    WorkerId from;
    std::string text;
    bool operator==(const Arrival&) const = default;
  };
  struct Loss {
    WorkerId peer;
    Error error;
    CallIds received;
  };

  /// Listens; start() enters the group.
  MemoryWorker(World& world, WorkerId id, WorkerSettings settings = {});
  ~MemoryWorker();
  MemoryWorker(const MemoryWorker&) = delete;
  MemoryWorker& operator=(const MemoryWorker&) = delete;

  void start();
  /// Sends a text frame; the note tells how that went.
  CallbackNote& send(const MemoryWorker& to, const std::string& text);
  CallbackNote& sendIfConnected(const MemoryWorker& to, const std::string& text);
  CallbackNote& connect(const MemoryWorker& to);

  std::vector<Arrival> arrivals() const;
  std::vector<std::string> texts() const;
  std::vector<Loss> losses() const;
  /// "broken" and "resumed", as its sessions were.
  std::vector<std::string> sessionTurns() const;
  /// The sentences of the deaths that were reported.
  std::vector<std::string> deaths() const;
  /// Why the others take this worker for dead, as often as it was told.
  std::vector<std::string> declaredDead() const;
  PeerStatus statusOf(const MemoryWorker& peer) const;
  PeerState stateOf(const MemoryWorker& peer) const {
    return statusOf(peer).state;
  }

  const WorkerRecord& record() const {
    return record_;
  }
  LinkManager& links() const {
    return *links_;
  }
  LinkContext& context() const {
    return context_;
  }

 private:
  struct Report;

  LinkManager::Events events(WorkerSettings& settings) const;

  World& world_;
  LinkContext& context_;
  const uint64_t groupId_;
  WorkerRecord record_;
  const std::shared_ptr<Report> report_; // shared with the events
  std::shared_ptr<LinkManager> links_;
};

/// Makes all of these workers (a container of pointers) known to each other, and starts them.
template <typename Workers>
void startTogether(const Workers& workers) {
  for (const auto& from : workers) {
    for (const auto& to : workers) {
      if (from != to) {
        from->links().addPeer(to->record());
      }
    }
    from->start();
  }
}

/// Starts both as members of one group.
void introduce(MemoryWorker& a, MemoryWorker& b);

/// A test's own end of a link, which says what no worker would. Thread-safe.
class RawPeer {
 public:
  RawPeer(Notifier& notifier, std::shared_ptr<Link> link);

  /// Dials the worker; says nothing yet.
  static RawPeer dial(World& world, const MemoryWorker& to);

  void say(OutgoingFrame frame);
  void close();

  std::vector<FrameKind> heard() const;
  IncomingFrame lastFrame() const;
  /// Why the link ended, if it did.
  Error error() const;

 private:
  struct State;

  static void listen(const std::shared_ptr<State>& state, const std::shared_ptr<Link>& link);

  std::shared_ptr<Link> link_;
  std::shared_ptr<State> state_;
};

/// What `from` would say to `to`.
Hello helloOf(const WorkerRecord& from, const MemoryWorker& to);
/// The record of a worker that is not there: id, name, versions and address fit.
WorkerRecord recordOf(WorkerId id);

} // namespace torchwire
