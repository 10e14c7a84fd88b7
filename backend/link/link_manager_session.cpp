// LinkManager: sessions, which outlive links.
#include "backend/link/link_manager.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "backend/base/log.h"
#include "backend/link/link_errors.h"

namespace torchwire {
namespace {

// A listener may be opened anew, as one is that a stray connection has closed.
constexpr int kRefusedDials = 2;
constexpr int kLeastDials = 2;
// A link that has lasted so long was of use, though nothing came.
constexpr std::chrono::seconds kSettled{2};

} // namespace

// ---- ends and beginnings of links ---------------------------------------------------------------

bool LinkManager::isResuming(const Peer& peer) {
  return peer.state == State::dialing && peer.session && peer.session->established();
}

/// If the peer's session outlives this link, closes the link and begins to dial for the next.
bool LinkManager::resumes(const Handle& broken, const Error& cause) {
  const bool badFrame = cause.code() == ErrorCode::badFrame;
  uint64_t session = 0;
  uint64_t breaks = 0;
  uint64_t generation = 0;
  bool dialsFirst = false;
  std::chrono::milliseconds patience = limits_.sessionTimeout;
  Error error;
  {
    MutexLock lock(mutex_);
    Peer* peer = current(broken, State::connected);
    if (peer == nullptr || !peer->session || peer->session->isOver() || leaving_ ||
        !peer->death.empty()) {
      return false;
    }
    error = lostError(peer->record, cause);
    if (cause.code() == ErrorCode::silent || cause.code() == ErrorCode::unreachable) {
      error =
          Error(ErrorCode::linkBroken, error.message()); // whether it lives, the next link tells
    }
    peer->session->broke(error, badFrame);
    if (peer->session->failsRepeatedly()) {
      return false;
    }
    session = peer->session->serial();
    breaks = peer->session->breaks();
    peer->state = State::dialing;
    generation = ++peer->generation;
    peer->link = nullptr;
    if (peer->session->hasReceivedSinceLinked() || timer_.now() - peer->connectedAt >= kSettled) {
      peer->attempts = 0; // else this goes on where the last dials came to nothing
    }
    peer->refusedDials = 0;
    ++peer->traffic.linksLost;
    dialsFirst = self_.id < peer->record.id;
    if (peer->session->relinksForSilence()) { // half is over; but a few dials have to come about
      patience = std::max(
          patience / 2, std::min(patience, limits_.precedence + kLeastDials * limits_.resumeDial));
    }
  }
  log(LogLevel::info, error.message() + "; dialing it again to go on");
  events_.linkBroken(broken.peer, error);
  if (badFrame) {
    closeWithReason(broken.link, Refusal{ErrorCode::refused, cause.message()});
  } else {
    broken.link->close();
  }
  timer_.after(patience, [weak = weak_from_this(), to = broken.peer, session, breaks, patience] {
    if (auto self = weak.lock()) {
      self->resumeExpired(to, session, breaks, patience);
    }
  });
  // The other's dial gives way, so it is only for where this side's does not arrive.
  redialAfter(dialsFirst ? limits_.retryDelay : limits_.precedence, broken.peer, generation);
  return true;
}

void LinkManager::resumeExpired(
    WorkerId to, uint64_t session, uint64_t breaks, std::chrono::milliseconds patience) {
  {
    MutexLock lock(mutex_);
    const Peer* peer = find(to);
    if (peer == nullptr || !peer->session || peer->session->serial() != session ||
        peer->session->breaks() != breaks) {
      return; // it went on meanwhile
    }
  }
  const std::string time = std::to_string(patience.count()) + " ms";
  endSession(to, session, Error(ErrorCode::silent, "no new connection within " + time));
}

/// Whether the session ends because a dial failed so. (Else it ends when its time is over.)
bool LinkManager::isFinal(Peer& peer, ErrorCode dialFailure) const {
  peer.refusedDials = dialFailure == ErrorCode::nobodyListens ? peer.refusedDials + 1 : 0;
  return leaving_ || dialFailure == ErrorCode::refused ||
      dialFailure == ErrorCode::sessionUnknown || dialFailure == ErrorCode::declaredDead ||
      peer.refusedDials >= kRefusedDials;
}

/// Fails what waits for the next link, and the calls that the last ones have carried, if the session still has none.
void LinkManager::endSession(WorkerId to, uint64_t serial, const Error& why) {
  Handle ended{to, 0, nullptr};
  std::deque<Waiting> waiting;
  std::unique_ptr<Session> session;
  Error error;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(to);
    if (peer == nullptr || !isResuming(*peer) || peer->session->serial() != serial) {
      return;
    }
    peer->state = State::disconnecting; // as in lost()
    ended.generation = ++peer->generation;
    ended.link.swap(peer->link);
    waiting.swap(peer->waiting);
    session = takeSession(*peer);
    const Error& cause = session->brokenBy();
    const bool tellsMore = why.code() == ErrorCode::nobodyListens ||
        why.code() == ErrorCode::silent || why.code() == ErrorCode::declaredDead;
    error = peer->lost = Error(
        tellsMore ? why.code() : cause.code(),
        cause.message() + "; it could not be resumed: " + why.message());
  }
  log(LogLevel::warning, error.message());
  if (ended.link) {
    ended.link->close();
  }
  Task complete = tellOfLoss(to, error, session, std::move(waiting));
  disconnected(ended);
  complete();
}

// ---- which session a link carries ---------------------------------------------------------------

// Sessions of two incarnations are counted, so that both sides begin the same one, whoever dials: of dials that cross, the
// one that stands may be lost with its welcome, and the other come late.
void LinkManager::beginSession(Peer& peer, uint64_t id) {
  peer.session = std::make_unique<Session>(
      std::max(id, peer.lastSession + 1), limits_.sessionBytes, ++sessions_);
}

std::unique_ptr<Session> LinkManager::takeSession(Peer& peer) {
  if (peer.session) {
    peer.lastSession = peer.session->id();
    peer.session->end(peer.ended);
  }
  return std::move(peer.session);
}

/// Ends our session if the peer's hello is for a later one: the peer has given ours up.
void LinkManager::endForgottenSession(const Hello& hello) {
  uint64_t forgotten = 0;
  {
    MutexLock lock(mutex_);
    const Peer* peer = find(hello.self.id);
    if (peer != nullptr && isResuming(*peer) && !keepsOurs(*peer, hello) &&
        peer->session->id() < hello.session.id) {
      forgotten = peer->session->serial();
    }
  }
  if (forgotten != 0) {
    endSession(
        hello.self.id, forgotten, Error(ErrorCode::sessionUnknown, "it has given the session up"));
  }
}

/// Whether the link that the hello asks for may carry the peer's session: the one that they share, unless they do not agree
/// on what has come, or a new one.
bool LinkManager::takesHello(Peer& peer, const SessionClaim& claim) {
  if (peer.session && peer.session->id() == claim.id) {
    return !peer.session->objectionTo(claim.received);
  }
  if (claim.established ||
      isResuming(peer)) { // a hello that comes late, or a session that has ended here
    return false;
  }
  if (limits_.sessionTimeout.count() > 0 && claim.id != 0) {
    beginSession(peer, claim.id);
  } else {
    peer.session = nullptr;
  }
  return true;
}

/// Whether the accepter's session is the one that this worker has dialed for, or, where that is new, a later one or none.
bool LinkManager::takesWelcome(Peer& peer, const SessionClaim& claim) {
  const bool shared = peer.session && peer.session->id() == claim.id;
  const bool isNew = !peer.session || !peer.session->established();
  if (isNew && claim.id == 0) {
    peer.session = nullptr;
    return true;
  }
  if (isNew && peer.session && !claim.established && claim.id > peer.session->id()) {
    beginSession(peer, claim.id);
    return true;
  }
  return shared;
}

CallIds LinkManager::receivedCalls(const std::unique_ptr<Session>& session) {
  return session ? session->receivedCalls() : CallIds();
}

// ---- frames -------------------------------------------------------------------------------------

bool LinkManager::hasRoom(const Peer& peer, const OutgoingFrame& frame) {
  return !peer.session || frame.head.empty() ||
      (peer.waiting.empty() && peer.session->hasRoom(frame.bytes()));
}

LinkManager::Outgoing LinkManager::goOut(Peer& peer, Waiting item) {
  countSent(peer, item.frame);
  Outgoing outgoing;
  if (peer.session && !item.frame.head.empty()) {
    outgoing.numbered = peer.session->number(std::move(item.frame));
    outgoing.watch = peer.session->startsWatch() ? peer.session->serial() : 0;
  }
  outgoing.item = std::move(item);
  return outgoing;
}

std::vector<LinkManager::Outgoing> LinkManager::takeSendable(Peer& peer) {
  std::vector<Outgoing> sendable;
  std::deque<Waiting>& waiting = peer.waiting;
  while (!waiting.empty() &&
         (!peer.session || waiting.front().frame.head.empty() ||
          peer.session->hasRoom(waiting.front().frame.bytes()))) {
    sendable.push_back(goOut(peer, std::move(waiting.front())));
    waiting.pop_front();
  }
  return sendable;
}

// What the link says of the frame does not matter: if the link breaks, the next one carries the frame again.
void LinkManager::deliverNumbered(Link& link, const Outgoing& outgoing) {
  try {
    link.sendShared(outgoing.numbered, [](const Error&) {});
  } catch (
      const std::exception& e) { // no memory, for one: the peer would wait for this number for ever
    log(LogLevel::warning, std::string("a frame cannot be sent: ") + e.what());
    link.close();
  }
  if (outgoing.item.sent) { // else it is sent again
    outgoing.item.sent(Error());
  }
}

/// Does what a request, a response or an acknowledgement means for the session, and counts it.
LinkManager::Fate LinkManager::arrived(
    const Handle& connected, ReceivedFrame& received, size_t bytes) {
  const FrameHeader& header = received.header;
  SentFrames::Released released; // destroyed unlocked
  std::vector<Outgoing> sendable;
  EndedSession::Undone undone;
  Session::Arrival arrival;
  uint64_t session = 0;
  size_t count = 0;
  {
    MutexLock lock(mutex_);
    Peer* peer = current(connected, State::connected);
    if (peer == nullptr) {
      return Fate::drop;
    }
    received.incarnation = peer->record.incarnation;
    if (peer->session) {
      session = peer->session->serial();
      arrival = peer->session->receive(header, bytes);
      count = peer->session->release(released);
      sendable = takeSendable(*peer);
      if (peer->ended.awaitsFrame()) {
        undone = peer->ended.settleByFrame();
      }
    }
    if (header.kind != FrameKind::acknowledge && arrival.isNew) {
      peer->traffic.addReceived(bytes);
    }
  }
  undo(undone);
  if (count == released.size()) {
    releaseRest(connected);
  }
  if (arrival.acknowledge) {
    connected.link->send(acknowledgeFrame(*arrival.acknowledge), [](const Error&) {});
  }
  if (arrival.startTimer) {
    acknowledgeAfter(connected.peer, session);
  }
  flush(connected, std::move(sendable));
  return header.kind != FrameKind::acknowledge && arrival.isNew ? Fate::handOn : Fate::drop;
}

/// Drops what else is acknowledged, and sends what has waited for the room.
void LinkManager::releaseRest(const Handle& connected) {
  size_t count = 0;
  do {
    SentFrames::Released released;
    std::vector<Outgoing> sendable;
    {
      MutexLock lock(mutex_);
      Peer* peer = current(connected, State::connected);
      if (peer == nullptr || !peer->session) {
        return;
      }
      count = peer->session->release(released);
      sendable = takeSendable(*peer);
    }
    flush(connected, std::move(sendable));
  } while (count == SentFrames::Released().size());
}

void LinkManager::acknowledgeAfter(WorkerId from, uint64_t session) {
  timer_.after(limits_.acknowledgeDelay, [weak = weak_from_this(), from, session] {
    if (auto self = weak.lock()) {
      self->acknowledge(from, session);
    }
  });
}

void LinkManager::acknowledge(WorkerId from, uint64_t session) {
  std::shared_ptr<Link> link;
  Session::Arrival due;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(from);
    if (peer == nullptr || !peer->session || peer->session->serial() != session) {
      return;
    }
    due = peer->session->onTimer();
    // Where there is no link, the next one's handshake says it; where this worker has left, nothing more goes out.
    if (peer->state == State::connected && !leaving_) {
      link = peer->link;
    }
  }
  if (due.acknowledge && link) {
    link->send(acknowledgeFrame(*due.acknowledge), [](const Error&) {});
  }
  if (due.startTimer) {
    acknowledgeAfter(from, session);
  }
}

// ---- silence ------------------------------------------------------------------------------------

void LinkManager::watchAfter(WorkerId peer, uint64_t session) {
  timer_.after(limits_.sessionTimeout / 4, [weak = weak_from_this(), peer, session] {
    if (auto self = weak.lock()) {
      self->watchSilence(peer, session);
    }
  });
}

/// A peer keeps its link but says nothing. At half of its time the link is made anew, since what is missing may have been
/// lost on it; at the end of its time the session ends: the peer stands still, or its host does.
void LinkManager::watchSilence(WorkerId id, uint64_t session) {
  std::optional<Handle> silent;
  ErrorCode code = ErrorCode::silent;
  auto silence = limits_.sessionTimeout;
  bool isOver = false;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(id);
    if (peer == nullptr || !peer->session || peer->session->serial() != session || leaving_) {
      return;
    }
    const Session::Watch watch = peer->session->onWatch();
    if (watch == Session::Watch::end) {
      return;
    }
    isOver = watch == Session::Watch::silent;
    if (isOver || watch == Session::Watch::relink) {
      silent = Handle{id, peer->generation, peer->link};
      silence /= isOver ? 1 : 2;
    }
    if (isOver && peer->session->isArriving()) { // so it lives, or has until not long ago
      code = ErrorCode::unreachable;
    }
  }
  if (silent) {
    const Error error(
        code, "it has not said anything for " + std::to_string(silence.count()) + " ms");
    if (isOver) {
      lost(*silent, error);
    } else { // does nothing where this worker leaves
      resumes(*silent, error);
    }
  }
  if (!isOver) {
    watchAfter(id, session);
  }
}

void LinkManager::watchLargeFrames(const Handle& connected) {
  if (limits_.sessionTimeout.count() == 0) {
    return;
  }
  // Without the link, which holds this.
  connected.link->watchLargeFrames(
      [weak = weak_from_this(), handle = Handle{connected.peer, connected.generation, nullptr}] {
        if (auto self = weak.lock()) {
          self->largeFrameBegan(handle);
        }
      });
}

void LinkManager::largeFrameBegan(const Handle& connected) {
  uint64_t session = 0;
  {
    MutexLock lock(mutex_);
    Peer* peer = current(connected, State::connected);
    if (peer == nullptr || !peer->session || !peer->session->startsArriving()) {
      return;
    }
    session = peer->session->serial();
  }
  arrivingAfter(connected.peer, session);
}

void LinkManager::arrivingAfter(WorkerId peer, uint64_t session) {
  timer_.after(limits_.sessionTimeout / 4, [weak = weak_from_this(), peer, session] {
    if (auto self = weak.lock()) {
      self->stillArriving(peer, session);
    }
  });
}

/// Lets the sender of a frame that takes long know that this worker lives; or makes the link anew, where nothing more of the
/// frame comes.
void LinkManager::stillArriving(WorkerId id, uint64_t session) {
  std::optional<Handle> connected;
  Session::Arriving arriving;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(id);
    if (peer == nullptr || !peer->session || peer->session->serial() != session) {
      return;
    }
    const auto& arrivals = peer->description.arrivals;
    arriving = peer->session->onArriving(arrivals ? std::optional(arrivals->load()) : std::nullopt);
    if (!arriving.acknowledge) {
      return;
    }
    if (peer->state == State::connected && !leaving_) {
      connected = Handle{id, peer->generation, peer->link};
    }
  }
  if (connected && arriving.relink) {
    resumes(
        *connected,
        Error(
            ErrorCode::linkBroken,
            "a large message has begun to arrive and nothing has come for " +
                std::to_string((limits_.sessionTimeout / 2).count()) + " ms"));
  } else if (connected) {
    connected->link->send(acknowledgeFrame(*arriving.acknowledge), [](const Error&) {});
  }
  arrivingAfter(id, session);
}

} // namespace torchwire
