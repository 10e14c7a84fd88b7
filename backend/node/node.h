// A worker of the group without its program: the links to its peers, the calls over them, deaths, and what takes the
// rendezvous store's place once that is gone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/base/error.h"
#include "backend/base/task.h"
#include "backend/base/timer.h"
#include "backend/call/call_table.h"
#include "backend/call/trace_log.h"
#include "backend/call/waiter.h"
#include "backend/link/link_manager.h"
#include "backend/membership/membership.h"
#include "backend/membership/peer_stores.h"
#include "backend/node/own_calls.h"
#include "backend/node/peer_deaths.h"
#include "backend/node/request_sender.h"
#include "backend/transport/processes.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Puts the parts together, and has them act on what the links say. Thread-safe, once it is open.
class Node {
 public:
  /// What runs on a node. Called unlocked, on any thread, and must not block, where nothing else is said.
  class Program {
   public:
    /// A request has come that is not one of the node's own. False: it cannot be served, and its caller is told so.
    virtual bool serve(WorkerId caller, ReceivedFrame request) = 0;
    /// Runs what serves a request of the node's own, on a thread that may block. False as in serve().
    virtual bool serveOwn(Task&& task) = 0;
    /// A response has come to a call that has ended before.
    virtual void dropResponse(WorkerId from, ReceivedFrame response) = 0;
    /// A request has not been sent, so that its receiver gives nothing back that was lent for it. Under any lock.
    virtual void requestUnsent(WorkerId to) = 0;
    /// Waits on the calling thread, which may block. May throw what a handler of a signal raises.
    virtual void await(Waiter& waiter) = 0;

    /// A worker that is no peer yet says hello. Returns why it cannot be one; else it is one from now on.
    virtual std::optional<Refusal> admit(const WorkerRecord& worker) = 0;
    /// It is a peer, and has been greeted. On a thread that may block.
    virtual void peerJoined(const WorkerRecord& peer) = 0;
    /// The link to a peer, or its session, is gone, and with it the requests and responses that were on it; or, of this
    /// worker, a frame that it has sent to itself.
    virtual void peerLost(WorkerId peer, const Error& error) = 0;
    /// A peer has died or has left: nothing that belongs to it is to stay. On a thread that may block. Another process may
    /// come in its place once this returns.
    virtual void peerGone(const WorkerRecord& peer, const Error& error) = 0;

    /// For messages: `worker 'trainer0' (rank 2)`, and the name alone.
    virtual std::string describe(WorkerId worker) const = 0;
    virtual std::string nameOf(WorkerId worker) const = 0;
    /// How long a store may take to answer.
    virtual std::chrono::milliseconds storeTimeout() const = 0;

   protected:
    ~Program() = default;
  };

  struct Settings {
    WorkerId id = 0;
    std::string name;
    bool isStatic = true; // all workers of the group start, and end, together
    bool isOpen = false; // workers may come once the group runs
    uint64_t firstCallId = 1;
    size_t maxBytesInFlight = 0; // of requests to one peer, see SendWindow; 0: unbounded
    LinkManager::Limits limits = {};
  };
  /// Runs a task on a thread that may block. False where this worker shuts down, or can start no thread.
  using Run = std::function<bool(Task&& task)>;
  /// What the node works with. It outlives the node, of which nothing runs any more when that goes.
  struct Parts {
    Program& program;
    Timer& timer;
    TraceLog& trace;
    Run control; // what others wait for
    Run deaths; // what is done about deaths: one task after another, which may wait for the store
  };
  Node(const Settings& settings, Parts parts);
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Makes the links, which do not listen yet. The parameters are as Parts.
  void open(LinkContext& context, Processes& processes, Membership& membership);
  /// Makes peers of the others on the roster, and from now on answers the hellos of those that come.
  void begin(const Roster& roster);
  /// Dials all peers, for its hello to make this worker known, and returns when each dial has ended. `check` is called now and
  /// then, and ends the wait by throwing.
  void introduce(const std::function<void()>& check);
  /// Ends what it serves. False: it has been closed before.
  bool close() {
    return !closed_.exchange(true);
  }
  bool isClosed() const {
    return closed_;
  }

  CallTable& calls() {
    return calls_;
  }
  const CallTable& calls() const {
    return calls_;
  }
  RequestSender& requests() {
    return requests_;
  }
  const RequestSender& requests() const {
    return requests_;
  }
  OwnCalls& ownCalls() {
    return ownCalls_;
  }
  /// Null until open().
  const std::shared_ptr<LinkManager>& links() const {
    return links_;
  }
  /// From open() on.
  PeerDeaths& deaths() {
    return *deaths_;
  }
  PeerStores& stores() {
    return *stores_;
  }
  /// As the program says.
  std::string describe(WorkerId worker) const {
    return parts_.program.describe(worker);
  }
  std::chrono::milliseconds storeTimeout() const {
    return parts_.program.storeTimeout();
  }
  /// Whether the rounds of the shutdown go on without the rendezvous store.
  bool storeIsGone() const {
    return stores_->place().isPeer();
  }
  /// Why no answer of the worker's can be there yet, where it is known: its request has not been sent, or its link is not
  /// there.
  std::optional<std::string> whyUnsent(WorkerId to, uint64_t callId) const;

 private:
  RequestSender::Worker senderWorker();
  OwnCalls::Worker ownCallsWorker();
  PeerStores::Links storeLinks();
  LinkManager::Events linkEvents();

  void onFrame(WorkerId from, ReceivedFrame frame);
  void onRequest(WorkerId from, ReceivedFrame request);
  void onResponse(WorkerId from, ReceivedFrame response);
  void onRefusal(WorkerId from, uint64_t callId, const Error& refusal);
  void refuse(WorkerId from, uint64_t callId, const std::string& limits);
  Task onPeerLost(
      WorkerId peer, const Error& error, const CallIds& received, const CallIds& unsent);
  void onPeerGone(const WorkerRecord& peer, const Error& error);
  std::optional<Refusal> onUnknownPeer(const Hello& hello);
  void tellOfStore(WorkerId to, std::vector<char> request);
  std::set<WorkerId> livingPeers() const;
  void note(const char* incident, WorkerId peer, const Error& why);

  const Settings settings_;
  const Parts parts_;
  CallTable calls_;
  RequestSender requests_;
  OwnCalls ownCalls_;
  const std::shared_ptr<PeerStores> stores_;
  std::shared_ptr<LinkManager> links_;
  Membership* membership_ = nullptr; // from open() on
  std::unique_ptr<PeerDeaths> deaths_;
  std::atomic<bool> closed_{false};
};

} // namespace torchwire
