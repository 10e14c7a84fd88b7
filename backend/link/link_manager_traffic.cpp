// LinkManager: what is sent and received, and what happens when a connected link breaks.
#include "backend/link/link_manager.h"

#include <optional>
#include <string>
#include <utility>

#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/link/link_errors.h"

namespace torchwire {
namespace {

/// Empty where nobody is to read it.
std::string sentenceOn(const WorkerRecord& peer, const LinkDescription& description) {
  if (!logEnabled(LogLevel::info)) {
    return {};
  }
  const std::string& cipher = description.encryption;
  return "connected to " + peer.describe() + " over " + description.transport +
      (cipher.empty() ? ", not encrypted" : ", encrypted (" + cipher + ")");
}

} // namespace

void LinkManager::send(WorkerId to, OutgoingFrame frame, Link::Sent sent) {
  std::shared_ptr<Link> link;
  Outgoing outgoing;
  Error error;
  bool dial = false;
  std::optional<uint64_t> postponed; // the generation of the dial
  {
    MutexLock lock(mutex_);
    Peer* peer = find(to);
    if (leaving_) {
      error = shutDownError();
    } else if (peer == nullptr) {
      error = Error(
          ErrorCode::unreachable, "no worker of rank " + std::to_string(to) + " is in the group");
    } else if (isGone(peer->state)) {
      error = errorOfGone(*peer);
    } else if (peer->state == State::disconnecting) {
      error = peer->lost;
    } else if (peer->state == State::connected && hasRoom(*peer, frame)) {
      link = peer->link;
      outgoing = goOut(*peer, {std::move(frame), std::move(sent)});
    } else {
      const bool onlyLink =
          frame.head.empty(); // connect(): perhaps of a worker that the peer does not know
      peer->waiting.push_back({std::move(frame), std::move(sent)});
      dial = peer->state == State::idle;
      if (dial) {
        peer->state = State::dialing;
        peer->attempts = 0;
        if (!onlyLink && awaitsDialOf(*peer)) {
          postponed = peer->generation;
        }
      }
    }
  }
  if (error) {
    failUnsent(frame, sent, error.notSent());
  } else if (link) {
    deliver(to, *link, std::move(outgoing));
  } else if (postponed) {
    redialAfter(limits_.precedence, to, *postponed);
  } else if (dial) {
    startDial(to);
  }
}

void LinkManager::sendIfConnected(WorkerId to, OutgoingFrame frame, Link::Sent sent) {
  std::shared_ptr<Link> link;
  Outgoing outgoing;
  bool waits = false;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(to);
    const bool mayGo = peer != nullptr && !leaving_; // the goodbye is the last frame
    if (mayGo && peer->state == State::connected && hasRoom(*peer, frame)) {
      link = peer->link;
      outgoing = goOut(*peer, {std::move(frame), std::move(sent)});
    } else if (mayGo && (peer->state == State::connected || isResuming(*peer))) {
      peer->waiting.push_back({std::move(frame), std::move(sent)});
      waits = true;
    }
  }
  if (link && outgoing.numbered) {
    deliver(to, *link, std::move(outgoing));
  } else if (link) {
    link->send(std::move(outgoing.item.frame), std::move(outgoing.item.sent));
  } else if (!waits) {
    failUnsent(
        frame, sent, Error(ErrorCode::linkBroken, "the link on which the request came is gone"));
  }
}

void LinkManager::connect(WorkerId to, Link::Sent done) {
  send(to, OutgoingFrame(), std::move(done));
}

void LinkManager::deliver(WorkerId to, Link& link, Outgoing outgoing) {
  Waiting& item = outgoing.item;
  if (outgoing.watch != 0) {
    watchAfter(to, outgoing.watch);
  }
  if (outgoing.numbered) {
    deliverNumbered(link, outgoing);
  } else if (item.frame.head.empty()) {
    item.sent(Error()); // connect(): the link was all that was asked for
  } else {
    link.send(
        std::move(item.frame),
        [self = shared_from_this(), to, sent = std::move(item.sent)](const Error& error) {
          self->onSent(to, error, sent);
        });
  }
}

// A link that breaks under a frame does not know whose it is.
void LinkManager::onSent(WorkerId to, const Error& error, const Link::Sent& sent) {
  if (!error) {
    sent(error);
    return;
  }
  std::string peer;
  {
    MutexLock lock(mutex_);
    peer = find(to)->record.describe();
  }
  sent(sendError(peer, error));
}

LinkManager::Established LinkManager::establish(
    Peer& peer, const Handle& handle, const SessionClaim& peers, LinkDescription description) {
  Established established;
  if (peer.session) {
    if (const auto objection = peer.session->objectionTo(peers.received)) {
      throw FormatError(*objection);
    }
    SentFrames::Rest rest = peer.session->linked(peers.received);
    for (SharedFrame& frame : rest.lacking) {
      established.outgoing.push_back({{}, std::move(frame)});
    }
    established.released = std::move(rest.released);
    established.resumed = peer.session->breaks() != 0;
    established.undone = peer.state == State::greeting ? peer.ended.settleByHello(peers.former)
                                                       : peer.ended.settleByWelcome(peers.former);
  }
  peer.state = State::connected;
  peer.link = handle.link;
  peer.lastLinkId = handle.linkId;
  peer.connectedAt = timer_.now();
  peer.refusedDials = peer.replacedDials = 0;
  peer.traffic.carryBy(description);
  peer.description = std::move(description);
  for (Outgoing& outgoing : takeSendable(peer)) {
    established.outgoing.push_back(std::move(outgoing));
  }
  established.sentence = sentenceOn(peer.record, peer.description);
  return established;
}

/// Unlocked, once the link is the peer's.
void LinkManager::begin(const Handle& connected, Established established) {
  if (!established.sentence.empty()) {
    log(LogLevel::info, established.sentence);
  }
  if (established.resumed) {
    events_.sessionResumed(connected.peer);
  }
  undo(established.undone);
  flush(connected, std::move(established.outgoing));
  watchLargeFrames(connected);
  receiveNext(connected);
}

void LinkManager::undo(const EndedSession::Undone& undone) {
  for (const Undo& one : undone) {
    one();
  }
}

void LinkManager::flush(const Handle& connected, std::vector<Outgoing> outgoing) {
  for (Outgoing& next : outgoing) {
    deliver(connected.peer, *connected.link, std::move(next));
  }
}

void LinkManager::receiveNext(const Handle& connected) {
  auto self = shared_from_this();
  connected.link->receive([self, connected](const Error& error, IncomingFrame frame) {
    if (!error) {
      self->onFrame(connected, std::move(frame)); // quick: whatever takes time is handed to a pool
    } else {
      self->lost(connected, error);
      if (error.code() != ErrorCode::badFrame) {
        return;
      }
    }
    self->receiveNext(connected); // on a link that was lost through a frame: see closeWithReason
  });
}

bool LinkManager::isCurrent(const Handle& connected) {
  MutexLock lock(mutex_);
  return current(connected, State::connected) != nullptr;
}

void LinkManager::onFrame(const Handle& connected, IncomingFrame frame) {
  const size_t bytes = frame.bytes();
  try {
    ReceivedFrame received = readHeader(std::move(frame));
    switch (received.header.kind) {
      case FrameKind::request:
      case FrameKind::response:
      case FrameKind::acknowledge:
        if (arrived(connected, received, bytes) == Fate::handOn) {
          events_.frame(connected.peer, std::move(received));
        }
        return;
      case FrameKind::goodbye:
        if (isCurrent(connected)) {
          markLeft(connected.peer, Goodbye::decode(received.frame));
        }
        return;
      case FrameKind::refuse:
        refused(connected, Refusal::decode(received.frame));
        return;
      default:
        throw FormatError("a second handshake");
    }
  } catch (const FormatError& e) {
    lost(
        connected,
        Error(ErrorCode::badFrame, std::string("a frame broke the protocol: ") + e.what()));
  }
}

void LinkManager::refused(const Handle& connected, const Refusal& refusal) {
  const bool isLast = refusal.code == ErrorCode::declaredDead && isCurrent(connected);
  if (isLast && events_.declaredDead) {
    events_.declaredDead(refusal.reason);
  }
  lost(connected, Error(ErrorCode::refused, refusal.reason));
}

// The calls on the link are told apart from later ones before a new link can be made: see tellOfLoss(). So they are before
// the link closes: a call whose frame is still being sent would otherwise hear of the close, and not of its cause. What
// another thread sends on the link meanwhile, be it after a refusal, is of a call that has failed.
void LinkManager::lost(const Handle& connected, const Error& cause) {
  if (isOwn(connected.peer)) {
    ownFrameLost(connected.peer, cause);
    return;
  }
  if (resumes(connected, cause)) {
    return;
  }
  Handle closing = connected;
  Error error;
  std::deque<Waiting> waiting;
  std::unique_ptr<Session> session;
  const bool badFrame = cause.code() == ErrorCode::badFrame;
  bool quiet = false;
  {
    MutexLock lock(mutex_);
    Peer* peer = current(connected, State::connected);
    if (peer == nullptr) {
      return;
    }
    if (!peer->death.empty()) { // its link has been read to the end
      const uint64_t incarnation = peer->record.incarnation;
      lock.unlock();
      endPeer(connected.peer, incarnation, State::dead);
      return;
    }
    peer->state = State::disconnecting;
    closing.generation = ++peer->generation;
    ++peer->traffic.linksLost;
    waiting.swap(peer->waiting);
    session = takeSession(*peer);
    error = peer->lost = lostError(peer->record, cause);
    quiet = leaving_ && !badFrame;
  }
  if (!quiet) {
    log(LogLevel::warning, error.message());
  }
  Task complete = tellOfLoss(connected.peer, error, session, std::move(waiting));
  if (badFrame) {
    closeWithReason(connected.link, Refusal{ErrorCode::refused, cause.message()});
  } else {
    connected.link->close();
  }
  disconnected(closing);
  complete();
}

/// Ends what has waited for a link or for room in the session. What is returned fails the calls to the peer; it runs when
/// new calls can be made.
// Before peerLost() has returned, sends to the peer have to fail: a call that another thread begins then would be taken for
// one of those that have failed, be it dialed anew or even on its way.
Task LinkManager::tellOfLoss(
    WorkerId peer, const Error& error, const std::unique_ptr<Session>& session,
    std::deque<Waiting> waiting) {
  CallIds unsent;
  std::deque<Waiting> requests; // whose callers may try anew
  for (Waiting& item : waiting) {
    if (!item.frame.head.empty() && isRequest(item.frame)) {
      unsent.insert(callIdOf(item.frame));
      requests.push_back(std::move(item));
    } else {
      failUnsent(item.frame, item.sent, error.notSent());
    }
  }
  Task complete = events_.peerLost(peer, error, receivedCalls(session), unsent);
  return [complete = std::move(complete), requests = std::move(requests), error]() mutable {
    if (complete) {
      complete();
    }
    failSends(requests, error);
  };
}

void LinkManager::failSends(const std::deque<Waiting>& waiting, const Error& error) {
  for (const Waiting& item : waiting) {
    failUnsent(item.frame, item.sent, error.notSent());
  }
}

void LinkManager::failUnsent(
    const OutgoingFrame& frame, const Link::Sent& sent, const Error& error) {
  frame.undo();
  sent(error);
}

/// No call to the peer is left: a new link can be made, unless the peer has died meanwhile.
void LinkManager::disconnected(const Handle& former) {
  std::optional<uint64_t> died; // the incarnation
  {
    MutexLock lock(mutex_);
    if (Peer* peer = current(former, State::disconnecting)) {
      peer->state = State::idle;
      peer->link = nullptr;
      disconnected_.notify_all();
      if (!peer->death.empty()) {
        died = peer->record.incarnation;
      }
    }
  }
  if (died) {
    endPeer(former.peer, *died, State::dead);
  }
}

// Whose the frame was cannot be known, so all calls fail, as on a link to a peer. An error of another kind means that the
// link was closed, which is the end of this worker.
void LinkManager::ownFrameLost(WorkerId self, const Error& cause) {
  if (cause.code() == ErrorCode::badFrame) {
    const Error error(cause.code(), "this worker lost its calls to itself: " + cause.message());
    tellOfLoss(self, error, nullptr, {})();
  }
}

// The peer closes once it has read why; to close here could overtake that. Until then receiveNext goes on, and
// onFrame drops what comes: a socket that closes with bytes unread in it takes back what it has sent.
void LinkManager::closeWithReason(const std::shared_ptr<Link>& link, const Refusal& refusal) {
  link->send(refusal.encode(), [](const Error&) {});
  closeRefused(link, Error(refusal.code, refusal.reason));
}

void LinkManager::countSent(Peer& peer, const OutgoingFrame& frame) {
  if (frame.head.empty()) {
    return; // only a link was asked for
  }
  peer.traffic.calls += isRequest(frame) ? 1 : 0;
  peer.traffic.addSent(frame.bytes());
}

} // namespace torchwire
