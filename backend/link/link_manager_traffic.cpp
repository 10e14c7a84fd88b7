// LinkManager: what is sent and received, and what happens when a connected link breaks.
#include "backend/link/link_manager.h"

#include <optional>
#include <utility>

#include "backend/base/log.h"
#include "backend/link/link_errors.h"

namespace torchwire {

void LinkManager::send(WorkerId to, OutgoingFrame frame, Link::Sent sent) {
  std::shared_ptr<Link> link;
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
    } else if (peer->state == State::left) {
      error = leftError(peer->record);
    } else if (peer->state == State::disconnecting) {
      error = peer->lost;
    } else if (peer->state == State::connected) {
      link = peer->link;
      countSent(*peer, frame);
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
    sent(error.notSent());
  } else if (link) {
    deliver(to, *link, {std::move(frame), std::move(sent)});
  } else if (postponed) {
    redialAfter(limits_.precedence, to, *postponed);
  } else if (dial) {
    startDial(to);
  }
}

void LinkManager::sendIfConnected(WorkerId to, OutgoingFrame frame, Link::Sent sent) {
  std::shared_ptr<Link> link;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(to);
    if (peer != nullptr && peer->state == State::connected &&
        !leaving_) { // the goodbye is the last frame
      link = peer->link;
      countSent(*peer, frame);
    }
  }
  if (link) {
    link->send(std::move(frame), std::move(sent));
  } else {
    sent(Error(ErrorCode::linkBroken, "the link on which the request came is gone"));
  }
}

void LinkManager::connect(WorkerId to, Link::Sent done) {
  send(to, OutgoingFrame(), std::move(done));
}

void LinkManager::deliver(WorkerId to, Link& link, Waiting item) {
  if (item.frame.head.empty()) {
    item.sent(Error()); // connect(): the link was all that was asked for
    return;
  }
  link.send(
      std::move(item.frame),
      [self = shared_from_this(), to, sent = std::move(item.sent)](const Error& error) {
        self->onSent(to, error, sent);
      });
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

std::deque<LinkManager::Waiting> LinkManager::establish(Peer& peer, const Handle& handle) {
  peer.state = State::connected;
  peer.link = handle.link;
  peer.lastLinkId = handle.linkId;
  std::deque<Waiting> waiting;
  waiting.swap(peer.waiting);
  for (const Waiting& item : waiting) {
    countSent(peer, item.frame);
  }
  return waiting;
}

void LinkManager::flush(const Handle& connected, std::deque<Waiting> waiting) {
  for (Waiting& item : waiting) {
    deliver(connected.peer, *connected.link, std::move(item));
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

void LinkManager::countReceived(WorkerId from, const IncomingFrame& frame) {
  MutexLock lock(mutex_);
  Traffic& traffic = find(from)->traffic;
  ++traffic.framesReceived;
  traffic.bytesReceived += frame.bytes();
}

void LinkManager::onFrame(const Handle& connected, IncomingFrame frame) {
  {
    MutexLock lock(mutex_);
    if (current(connected, State::connected) == nullptr) {
      return;
    }
  }
  try {
    ReceivedFrame received = readHeader(std::move(frame));
    switch (received.header.kind) {
      case FrameKind::request:
      case FrameKind::response:
        countReceived(connected.peer, received.frame);
        events_.frame(connected.peer, std::move(received));
        return;
      case FrameKind::goodbye:
        markLeft(connected.peer);
        return;
      case FrameKind::refuse:
        lost(connected, Error(ErrorCode::refused, Refusal::decode(received.frame).reason));
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

// The calls on the link fail before a new link can be made: otherwise a call on the new one could be
// taken for one of them. They also fail before the link closes: a call whose frame is still being sent would
// otherwise hear of the close, and not of its cause. What another thread sends on the link meanwhile, be it
// after a refusal, is of a call that has failed.
void LinkManager::lost(const Handle& connected, const Error& cause) {
  if (isOwn(connected.peer)) {
    ownFrameLost(connected.peer, cause);
    return;
  }
  Handle closing = connected;
  Error error;
  const bool badFrame = cause.code() == ErrorCode::badFrame;
  bool quiet = false;
  {
    MutexLock lock(mutex_);
    Peer* peer = current(connected, State::connected);
    if (peer == nullptr) {
      return;
    }
    peer->state = State::disconnecting;
    closing.generation = ++peer->generation;
    ++peer->traffic.linksLost;
    error = peer->lost = lostError(peer->record, cause);
    quiet = leaving_ && !badFrame;
  }
  if (!quiet) {
    log(LogLevel::warning, error.message());
  }
  events_.peerLost(connected.peer, error);
  if (badFrame) {
    closeWithReason(connected.link, cause.message());
  } else {
    connected.link->close();
  }
  disconnected(closing);
}

/// All calls have failed: a new link can be made.
void LinkManager::disconnected(const Handle& former) {
  MutexLock lock(mutex_);
  if (Peer* peer = current(former, State::disconnecting)) {
    peer->state = State::idle;
    peer->link = nullptr;
    disconnected_.notify_all();
  }
}

// Whose the frame was cannot be known, so all calls fail, as on a link to a peer. An error of another kind means that the
// link was closed, which is the end of this worker.
void LinkManager::ownFrameLost(WorkerId self, const Error& cause) {
  if (cause.code() == ErrorCode::badFrame) {
    events_.peerLost(
        self, Error(cause.code(), "this worker lost its calls to itself: " + cause.message()));
  }
}

// The peer closes once it has read why; to close here could overtake that. Until then receiveNext goes on, and
// onFrame drops what comes: a socket that closes with bytes unread in it takes back what it has sent.
void LinkManager::closeWithReason(const std::shared_ptr<Link>& link, const std::string& reason) {
  const Refusal refusal{ErrorCode::refused, reason};
  link->send(refusal.encode(), [](const Error&) {});
  closeRefused(link, Error(refusal.code, refusal.reason));
}

void LinkManager::countSent(Peer& peer, const OutgoingFrame& frame) {
  if (frame.head.empty()) {
    return; // only a link was asked for
  }
  const bool isCall = frame.head.front() == static_cast<char>(FrameKind::request);
  peer.traffic.calls += isCall ? 1 : 0;
  ++peer.traffic.framesSent;
  peer.traffic.bytesSent += frame.bytes();
}

} // namespace torchwire
