// One link per peer: who dials, who accepts, what waits meanwhile, and what happens when it breaks.
//
// A peer's state:
//
//   idle ──send()──▶ dialing ──welcome──▶ connected ──error──▶ disconnecting ──calls failed──▶ idle
//    │                  │ ▲                    ▲
//    │                  │ └─retry after a      │
//    │                  │   while              │
//    │                  ├─error, refusal──▶ disconnecting
//    │                  │                      │
//    └──hello of──▶ greeting ──welcome sent────┘
//       the peer        ▲
//                       └── also from dialing
//   any ──goodbye──▶ left (sends fail at once)
//   any ──its process has ended──▶ dead (the same, but it has not said goodbye)
//   left, dead ──hello of another incarnation──▶ greeting
//
// A hello of another incarnation means that the former one has ended. It waits until that has been reclaimed.
//
// Where sessions are on (Limits::sessionTimeout), a connected link that breaks does not end the session between the two
// workers (session.h): the peer is dialing again, which is shown as `resuming`. Calls do not fail, sends wait, and the next
// link carries what the last one lost. The session ends, and its calls fail with it, when
// - sessionTimeout is over;
// - the peer does not know the session, is another incarnation, or refuses;
// - nobody listens at its address any more: its process has ended;
// - the same frame breaks the protocol twice;
// - the peer says nothing for sessionTimeout though something is to be acknowledged: it stands still;
// - one of the two leaves.
//
// The error that ends a connected link may be a frame that makes no sense: then the peer is told so, by a
// refusal, before the link closes.
//
// What is sent while greeting or dialing waits until the link is connected; what is sent while disconnecting
// fails.
//
// When two workers dial each other at the same time, the dial of the one with the lower id stands: it
// refuses the other's hello (duplicateLink), and the other accepts its hello while dialing. Of the dials that
// resume a session, every second one gives way instead, since the peer may have another address by now. The
// other's hello may also arrive when the first dial has already succeeded. To tell it from the hello of a peer
// whose link broke unnoticed here, a hello names the last link that its sender has had with the receiver: only
// one that names the present link replaces it, or one that resumes the session when nothing has come on the present
// link for as long as a dialer waits for the welcome.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/timer.h"
#include "backend/link/link.h"
#include "backend/link/session.h"
#include "backend/link/traffic.h"
#include "backend/wire/handshake.h"
#include "backend/wire/roster.h"

namespace torchwire {

enum class PeerState { idle, dialing, greeting, connected, resuming, disconnecting, left, dead };
/// As it is called in debug information.
const char* nameOf(PeerState state);
/// Whether it will not come back as the same incarnation.
inline bool isGone(PeerState state) {
  return state == PeerState::left || state == PeerState::dead;
}

/// A peer as shown in debug information.
struct PeerStatus {
  WorkerRecord record;
  PeerState state = PeerState::idle;
  LinkDescription link;
  Traffic traffic;
};

/// Carries frames to and from all peers. Events are called unlocked, on any thread, and must not
/// block. Thread-safe. Held by shared_ptr: link callbacks keep it alive.
class LinkManager : public std::enable_shared_from_this<LinkManager> {
 public:
  struct Events {
    /// A request or a response arrived.
    std::function<void(WorkerId from, ReceivedFrame)> frame;
    /// The link to a peer is gone, or none could be made: calls to it will not be answered. With a session, it has ended.
    /// `received`: the calls whose requests the peer is known to have received, and which it has not answered; `unsent`:
    /// those whose requests were never handed to a link. What it returns, if anything, runs on the same thread once sends to
    /// the peer dial anew, so that whoever then hears of a failure may try again.
    std::function<Task(WorkerId, const Error&, const CallIds& received, const CallIds& unsent)>
        peerLost;
    /// A peer is dead or has left: `error` is what sends to it fail with. Comes after the loss, once for each incarnation.
    /// Whoever sets this calls reclaimed() once nothing is left of that incarnation; another one is not let in before.
    std::function<void(const WorkerRecord&, const Error&)> peerGone;
    /// A worker that is not among the peers says hello. Returns the record to add as a peer, or why
    /// it may not join. Unset: unknown peers are refused.
    std::function<std::optional<Refusal>(const Hello&)> unknownPeer;
    /// It is a peer now.
    std::function<void(const WorkerRecord&)> peerJoined;
    /// A peer says that the group goes on without this worker. Perhaps more than once. See endPart().
    std::function<void(const std::string& reason)> declaredDead;
    /// For who keeps a record. A link has broken whose session goes on; the next link carries the session.
    std::function<void(WorkerId, const Error&)> linkBroken = [](WorkerId, const Error&) {};
    std::function<void(WorkerId)> sessionResumed = [](WorkerId) {};
  };
  struct Limits {
    std::chrono::milliseconds handshake{20000}; // for one dial or one accept to finish
    std::chrono::milliseconds retryDelay{50}; // before the second dial; doubles each time
    int attempts = 4;
    // When all workers of a group dial each other at once, half of the dials are for nothing. So while `manyDials` are
    // under way, a dial that would give way to the peer's waits for that: so long.
    std::chrono::milliseconds precedence{300};
    size_t manyDials = 8;
    // How long a link stays open that a refusal has ended. Ours, because to open large-tensor channels
    // TensorPipe makes connections beside the pipe, on which it must not find an end before a beginning: that
    // closes the channel for all. The peer's, for it to read why.
    std::chrono::milliseconds refusedGrace{2000};
    // How long what a dead peer has sent before its end may take to be read.
    std::chrono::milliseconds deathGrace{200};

    // How long a session waits for its next link. 0: no sessions; the calls on a link end with it.
    std::chrono::milliseconds sessionTimeout{0};
    // Of what is kept for each peer until it has acknowledged it. What comes on top waits.
    size_t sessionBytes = size_t{64} << 20;
    // For one dial that resumes a session; doubles every few times. Short, since a packet that the network has lost is sent
    // again only after a second and more.
    std::chrono::milliseconds resumeDial{600};
    std::chrono::milliseconds resumeRetryDelay{250}; // the longest pause between two of them
    // How long what has come may go without an acknowledgement.
    std::chrono::milliseconds acknowledgeDelay{20};
  };

  LinkManager(LinkContext& context, Timer& timer, Events events, Limits limits);

  /// Starts to listen. Returns the address that others dial. Hellos wait until acceptPeers().
  std::string listen();

  /// What greetings say of this worker and its group: before any peer is dialed.
  void setGroup(WorkerRecord self, uint64_t groupId) EXCLUDES(mutex_);
  /// Answers the hellos that have come, and from now on each as it comes.
  void acceptPeers() EXCLUDES(mutex_);

  /// Makes this worker a peer of its own, which is always connected, by `loopback`. A frame that does not come through
  /// whole is `peerLost` of this worker; the link stays. At most once, before anything is sent.
  void addLoopback(const WorkerRecord& self, std::shared_ptr<Link> loopback) EXCLUDES(mutex_);
  /// Adds a peer, or replaces an earlier incarnation of it.
  void addPeer(const WorkerRecord& record) EXCLUDES(mutex_);
  /// Forgets nothing but marks the peer as gone: sends to it fail.
  void markLeft(WorkerId id, Goodbye goodbye = {}) EXCLUDES(mutex_);
  /// An incarnation of a peer has ended, or is taken for dead by all. Its link is read to the end, for a moment at most;
  /// then sends to it fail, and it is refused should it come back. Another incarnation of it may be added. `reason` as in
  /// "worker 'w' (rank 1) has died: <reason>".
  void markDead(WorkerId id, uint64_t incarnation, const std::string& reason) EXCLUDES(mutex_);
  /// The others take this worker for dead: it ends all links. From then on sends fail with the reason, nobody is let in, and
  /// all peers are dead to this worker (peerGone). On any thread.
  void endPart(const std::string& reason) EXCLUDES(mutex_);
  /// What sends fail with since then.
  std::optional<Error> declaredDead() const EXCLUDES(mutex_);
  /// Nothing is left of an incarnation that is gone. Lets another one in, that has said hello meanwhile. On any thread.
  void reclaimed(WorkerId id, uint64_t incarnation) EXCLUDES(mutex_);

  /// Sends a frame, dialing first if need be. `sent` as in Link; with a session, success means that the frame has been
  /// handed to a link and comes through unless the session ends, and an error that no link ever had it.
  void send(WorkerId to, OutgoingFrame frame, Link::Sent sent) EXCLUDES(mutex_);
  /// Sends a frame on the link that is there, or on the next one of the session, else drops it (a response whose caller is
  /// gone).
  void sendIfConnected(WorkerId to, OutgoingFrame frame, Link::Sent sent) EXCLUDES(mutex_);
  /// Dials a peer that has no link, for its hello to make this worker known there.
  void connect(WorkerId to, Link::Sent done) EXCLUDES(mutex_);

  /// Why leave() will be called, for the peers to hear. The first explanation counts.
  void explainLeave(Goodbye goodbye) EXCLUDES(mutex_);
  /// Tells all connected peers that this worker leaves, waits until they know (at most `patience`, and no longer once
  /// `isHurried`, which is asked now and then) and closes all links. Idempotent.
  void leave(
      std::chrono::milliseconds patience,
      const std::function<bool()>& isHurried = [] { return false; }) EXCLUDES(mutex_);
  /// Whether leave() has been called.
  bool isLeaving() const EXCLUDES(mutex_);

  /// Of the peer that has this rank now, or had it last; 0: there was none, or it is this worker.
  uint64_t incarnationOf(WorkerId id) const EXCLUDES(mutex_);
  /// Whether another incarnation has come in place of this one. Takes no lock where none ever has.
  bool isFormer(WorkerId id, uint64_t incarnation) const EXCLUDES(mutex_);
  /// Of all peers but this worker.
  std::vector<PeerStatus> status() const EXCLUDES(mutex_);
  /// Of a peer that is in the group, as far as is known here.
  std::optional<PeerStatus> statusOf(WorkerId id) const EXCLUDES(mutex_);
  /// What a peer has said of why it has left; empty of one that has not.
  Goodbye goodbyeOf(WorkerId id) const EXCLUDES(mutex_);
  /// What this worker has been told to say.
  Goodbye ownGoodbye() const EXCLUDES(mutex_);

 private:
  using State = PeerState;
  struct Waiting {
    OutgoingFrame frame; // with an empty head: wanted is only the link
    Link::Sent sent;
  };
  struct Peer {
    WorkerRecord record;
    State state = State::idle;
    // Counts the links and dials to this peer, so that a callback of an old one can be told apart.
    uint64_t generation = 0;
    std::shared_ptr<Link> link; // while dialing: the one being dialed
    uint64_t lastLinkId = 0; // of the newest link that was established
    std::deque<Waiting> waiting;
    int attempts = 0;
    std::chrono::steady_clock::time_point connectedAt; // the newest link that was established
    std::string death; // why it is dead, or will be once its link is read to the end
    Goodbye goodbye; // once it has left
    bool isReclaimed = false; // dead or left, and nothing is left of it
    std::vector<uint64_t> formerIncarnations; // the oldest first
    LinkDescription description;
    Error lost; // while disconnecting: why
    Traffic traffic;
    // While dialing perhaps a new one. Null: sessions are off here or there, or there is none yet.
    std::unique_ptr<Session> session;
    uint64_t lastSession = 0; // that has ended
    EndedSession ended; // the same, or the one before
    int refusedDials = 0; // one after another, because nobody listened
    int replacedDials = 0; // likewise, because another process of its rank answered
  };
  // What goes out on a link. Sessions go by their serial numbers here and below.
  struct Outgoing {
    Waiting item;
    SharedFrame numbered; // in place of the item's frame, where there is a session
    uint64_t watch = 0; // the session, of which the silence is to be watched from now on
  };
  // A link under construction or in use, as its callbacks name it.
  struct Handle {
    WorkerId peer;
    uint64_t generation;
    std::shared_ptr<Link> link;
    uint64_t linkId = 0;
  };

  // The methods are in four files. link_manager.cpp: the peers, the group, leaving, and what the others
  // share.
  static PeerStatus statusOf(const Peer& peer);
  Peer* find(WorkerId id) REQUIRES(mutex_);
  Peer* current(const Handle& handle, State state) REQUIRES(mutex_);
  Hello introduction(const Peer& to) const REQUIRES(mutex_);
  bool awaitDisconnection(std::chrono::steady_clock::time_point end) EXCLUDES(mutex_);
  bool noneConnected() const REQUIRES(mutex_);
  bool isOwn(WorkerId id) const EXCLUDES(mutex_);
  Error errorOfGone(const Peer& peer) const REQUIRES(mutex_);
  void endPeer(WorkerId id, uint64_t incarnation, State state) EXCLUDES(mutex_);
  static Refusal goneRefusal(const Peer& peer);

  // link_manager_dial.cpp: from the first attempt to the welcome, or to giving up.
  bool awaitsDialOf(const Peer& peer) const REQUIRES(mutex_);
  void startDial(WorkerId to) EXCLUDES(mutex_);
  void redialAfter(std::chrono::milliseconds delay, WorkerId to, uint64_t generation);
  void onDialReply(const Handle& dial, const Error& error, const IncomingFrame& frame);
  void onWelcome(const Handle& dial, const Hello& welcome) EXCLUDES(mutex_);
  void dialFailed(const Handle& dial, const Error& error) EXCLUDES(mutex_);
  void redial(WorkerId to, uint64_t generation) EXCLUDES(mutex_);
  void closeRefused(const std::shared_ptr<Link>& link, const Error& error);
  void failWaiting(WorkerId to, uint64_t generation, const Error& error) EXCLUDES(mutex_);

  // link_manager_accept.cpp: from a link that has said nothing to a connected or a refused one.
  void accept(std::shared_ptr<Link> link) EXCLUDES(mutex_);
  void onHello(const std::shared_ptr<Link>& link, const Hello& hello) EXCLUDES(mutex_);
  std::optional<Refusal> objectionOf(const Peer* peer, const Hello& hello) const REQUIRES(mutex_);
  bool keepsOurs(const Peer& peer, const Hello& hello) const REQUIRES(mutex_);
  void adopt(const std::shared_ptr<Link>& link, const Hello& hello) EXCLUDES(mutex_);
  void greeted(const Handle& accepted, const SessionClaim& dialers) EXCLUDES(mutex_);
  bool hasGivenUp(const Peer& peer, const Hello& hello) const REQUIRES(mutex_);
  std::optional<Handle> linkThatBroke(const Hello& hello) EXCLUDES(mutex_);
  void refuse(const std::shared_ptr<Link>& link, const Hello& hello, const Refusal& refusal);

  // link_manager_session.cpp: what outlives a link.
  static bool isResuming(const Peer& peer);
  bool resumes(const Handle& broken, const Error& cause) EXCLUDES(mutex_);
  void resumeExpired(
      WorkerId to, uint64_t session, uint64_t breaks, std::chrono::milliseconds patience)
      EXCLUDES(mutex_);
  bool isFinal(Peer& peer, ErrorCode dialFailure) const REQUIRES(mutex_);
  void endSession(WorkerId to, uint64_t session, const Error& why) EXCLUDES(mutex_);
  void endForgottenSession(const Hello& hello) EXCLUDES(mutex_);
  void beginSession(Peer& peer, uint64_t id) REQUIRES(mutex_);
  static std::unique_ptr<Session> takeSession(Peer& peer);
  bool takesHello(Peer& peer, const SessionClaim& claim) REQUIRES(mutex_);
  bool takesWelcome(Peer& peer, const SessionClaim& claim) REQUIRES(mutex_);
  static bool hasRoom(const Peer& peer, const OutgoingFrame& frame);
  Outgoing goOut(Peer& peer, Waiting item) REQUIRES(mutex_);
  static void deliverNumbered(Link& link, const Outgoing& outgoing);
  std::vector<Outgoing> takeSendable(Peer& peer) REQUIRES(mutex_);
  static CallIds receivedCalls(const std::unique_ptr<Session>& session);
  enum class Fate { handOn, drop };
  Fate arrived(const Handle& connected, ReceivedFrame& received, size_t bytes) EXCLUDES(mutex_);
  void releaseRest(const Handle& connected) EXCLUDES(mutex_);
  void acknowledgeAfter(WorkerId from, uint64_t session);
  void acknowledge(WorkerId from, uint64_t session) EXCLUDES(mutex_);
  void watchAfter(WorkerId peer, uint64_t session);
  void watchSilence(WorkerId peer, uint64_t session) EXCLUDES(mutex_);
  void watchLargeFrames(const Handle& connected);
  void largeFrameBegan(const Handle& connected) EXCLUDES(mutex_);
  void arrivingAfter(WorkerId peer, uint64_t session);
  void stillArriving(WorkerId peer, uint64_t session) EXCLUDES(mutex_);

  // link_manager_traffic.cpp: sending, and a connected link up to its loss.
  void deliver(WorkerId to, Link& link, Outgoing outgoing);
  void onSent(WorkerId to, const Error& error, const Link::Sent& sent) EXCLUDES(mutex_);
  /// What follows once a link is the peer's.
  struct Established {
    std::vector<Outgoing> outgoing; // what the peer lacks, and what has waited for a link
    std::vector<SharedFrame> released; // what it has
    EndedSession::Undone undone; // of what it has never received of an earlier session
    bool resumed = false; // a session that had lost its link
    std::string sentence; // for the log; or none
  };
  /// Makes the link the peer's. Throws FormatError, and then nothing has changed, where the peer cannot have received what
  /// it says.
  Established establish(
      Peer& peer, const Handle& handle, const SessionClaim& peers, LinkDescription description)
      REQUIRES(mutex_);
  static void undo(const EndedSession::Undone& undone);
  void begin(const Handle& connected, Established established);
  void flush(const Handle& connected, std::vector<Outgoing> outgoing);
  void receiveNext(const Handle& connected);
  bool isCurrent(const Handle& connected) EXCLUDES(mutex_);
  void onFrame(const Handle& connected, IncomingFrame frame) EXCLUDES(mutex_);
  void lost(const Handle& connected, const Error& error) EXCLUDES(mutex_);
  void disconnected(const Handle& former) EXCLUDES(mutex_);
  Task tellOfLoss(
      WorkerId peer, const Error& error, const std::unique_ptr<Session>& session,
      std::deque<Waiting> waiting);
  static void failSends(const std::deque<Waiting>& waiting, const Error& error);
  static void failUnsent(const OutgoingFrame& frame, const Link::Sent& sent, const Error& error);
  void ownFrameLost(WorkerId self, const Error& cause);
  void refused(const Handle& connected, const Refusal& refusal);
  void closeWithReason(const std::shared_ptr<Link>& link, const Refusal& refusal);
  void countSent(Peer& peer, const OutgoingFrame& frame) REQUIRES(mutex_);

  LinkContext& context_;
  Timer& timer_;
  const Events events_;
  const Limits limits_;

  std::atomic<bool> replaced_{false}; // whether a peer ever was

  mutable Mutex mutex_{LockRank::linkManager};
  std::condition_variable_any disconnected_;
  bool acceptsPeers_ GUARDED_BY(mutex_) = false;
  bool leaving_ GUARDED_BY(mutex_) = false;
  Goodbye goodbye_ GUARDED_BY(mutex_); // this worker's
  std::optional<Error> declaredDead_ GUARDED_BY(mutex_);
  WorkerRecord self_ GUARDED_BY(mutex_);
  uint64_t groupId_ GUARDED_BY(mutex_) = 0;
  std::map<WorkerId, Peer> peers_ GUARDED_BY(mutex_);
  uint64_t sessions_ GUARDED_BY(mutex_) = 0; // how many there have been
  // Apart from peers_: nobody dials it, and it says no goodbye. Null without a loopback link.
  std::unique_ptr<Peer> own_ GUARDED_BY(mutex_);
  using Greeting = std::pair<std::shared_ptr<Link>, Hello>;
  // Links whose hello came before the group was known.
  std::vector<Greeting> early_ GUARDED_BY(mutex_);
  // Links of workers of which a former incarnation has not been reclaimed.
  std::vector<Greeting> successors_ GUARDED_BY(mutex_);
};

} // namespace torchwire
