// LinkManager: accepting, from a link of which nothing is known to one that is connected or refused.
#include "backend/link/link_manager.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "backend/base/log.h"
#include "backend/link/link_errors.h"

namespace torchwire {
namespace {

void closeWithWarning(const std::shared_ptr<Link>& link, const FormatError& reason) {
  log(LogLevel::warning, std::string("closed a link without a valid hello: ") + reason.what());
  link->close();
}

} // namespace

void LinkManager::accept(std::shared_ptr<Link> link) {
  const auto spoke = std::make_shared<std::atomic<bool>>(false);
  timer_.after(limits_.handshake, [waiting = std::weak_ptr<Link>(link), spoke] {
    const auto silent = waiting.lock();
    if (silent && !*spoke) {
      log(LogLevel::warning, "closed a link that said nothing");
      silent->close();
    }
  });
  link->receive([weak = weak_from_this(), link, spoke](const Error& error, IncomingFrame frame) {
    *spoke = true;
    auto self = weak.lock();
    if (!self || (error && error.code() != ErrorCode::badFrame)) {
      link->close();
      return;
    }
    Hello hello;
    try {
      if (error) {
        throw FormatError(error.message());
      }
      if (kindOf(frame) != FrameKind::hello) {
        throw FormatError("the first frame is no hello");
      }
      hello = Hello::decode(frame);
    } catch (const FormatError& e) {
      closeWithWarning(link, e);
      return;
    }
    self->onHello(link, hello);
  });
}

void LinkManager::onHello(const std::shared_ptr<Link>& link, const Hello& hello) {
  std::optional<Refusal> refusal;
  bool known = false;
  std::optional<WorkerRecord> former; // which lives as far as is known here
  {
    MutexLock lock(mutex_);
    if (!acceptsPeers_) {
      early_.emplace_back(link, hello);
      return;
    }
    const Peer* peer = find(hello.self.id);
    refusal = objectionOf(peer, hello);
    known = peer != nullptr && peer->record.incarnation == hello.self.incarnation;
    if (!refusal && !known && peer != nullptr && !peer->isReclaimed) {
      successors_.emplace_back(link, hello);
      former = peer->record;
    }
  }
  if (former) {
    markDead(former->id, former->incarnation, "another process has come under its name and rank");
    return;
  }
  if (!refusal && !known) {
    refusal = events_.unknownPeer(hello);
    if (!refusal) {
      addPeer(hello.self);
      if (events_.peerJoined) {
        events_.peerJoined(hello.self);
      }
    }
  }
  if (refusal) {
    refuse(link, hello, *refusal);
    return;
  }
  try {
    adopt(link, hello);
  } catch (const FormatError& e) {
    closeWithWarning(link, e);
  }
}

std::optional<Refusal> LinkManager::objectionOf(const Peer* peer, const Hello& hello) const {
  if (auto objection = objectionToHello(hello, self_, groupId_)) {
    if (declaredDead_ && objection->code == ErrorCode::workerDied) {
      objection->code =
          ErrorCode::refused; // the other process of this rank may be the one that lives
    }
    return objection;
  }
  if (leaving_) {
    return Refusal{ErrorCode::refused, self_.describe() + " is shutting down"};
  }
  if (declaredDead_) {
    return Refusal{ErrorCode::partOver, self_.describe() + " takes part in the group no more"};
  }
  const bool isFormer = peer != nullptr &&
      std::count(
          peer->formerIncarnations.begin(), peer->formerIncarnations.end(),
          hello.self.incarnation) != 0;
  if (isFormer) {
    return Refusal{
        ErrorCode::declaredDead,
        "the group goes on without it: another process has come under its name and rank"};
  }
  const bool known = peer != nullptr && peer->record.incarnation == hello.self.incarnation;
  if (known && !peer->death.empty()) {
    return goneRefusal(*peer);
  }
  if (!known && !events_.unknownPeer) {
    return Refusal{ErrorCode::refused, "it knows no " + hello.self.describe()};
  }
  return std::nullopt;
}

Refusal LinkManager::goneRefusal(const Peer& peer) {
  return Refusal{
      ErrorCode::declaredDead,
      "the group goes on without it: " + diedError(peer.record, peer.death).message()};
}

bool LinkManager::keepsOurs(const Peer& peer, const Hello& hello) const {
  switch (peer.state) {
    case State::dialing: { // a dial that waits for its next attempt gives way
      // So does every second dial that resumes a session, since the peer may have another address by now. If all of them
      // did, the two workers could give way to each other without end.
      const bool mayBeElsewhere = isResuming(peer) && peer.attempts % 2 == 0;
      // The peer has answered a dial of this worker's, and the welcome was lost on the way with its link.
      const bool wasWelcomed = hello.session.established && !isResuming(peer);
      return peer.link != nullptr && self_.id < hello.self.id && !mayBeElsewhere && !wasWelcomed;
    }
    case State::greeting:
    case State::connected: // it was dialed before this link came about
    case State::
        disconnecting: // not before the calls on the old link are known; the peer will try again
    case State::left: // its goodbye was quicker than this hello
    case State::dead: // it has been refused before, unless this is found out just now
      return true;
    case State::idle:
    case State::resuming: // as which dialing is shown
      return false;
  }
  return false;
}

void LinkManager::adopt(const std::shared_ptr<Link>& link, const Hello& hello) {
  LinkDescription description =
      context_.describe(hello.offer); // may throw: before anything changes
  if (const auto objection = objectionTo(description)) {
    refuse(link, hello, Refusal{ErrorCode::refused, *objection});
    return;
  }
  Handle handle{hello.self.id, 0, link, hello.linkId};
  if (const auto broken = linkThatBroke(hello)) { // the peer saw it before we did
    lost(*broken, Error(ErrorCode::linkBroken, "it dialed anew"));
  }
  endForgottenSession(hello);
  Hello welcome;
  std::optional<Refusal> refusal;
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[hello.self.id];
    if (keepsOurs(peer, hello)) {
      refusal = Refusal{ErrorCode::duplicateLink, "there is another link or dial"};
    } else if (!takesHello(peer, hello.session)) {
      const bool isShared = peer.session && peer.session->id() == hello.session.id;
      refusal = isShared
          ? Refusal{ErrorCode::sessionUnknown, *peer.session->objectionTo(hello.session.received)}
          : hello.session.established
          ? Refusal{ErrorCode::sessionUnknown, "the session has ended there"}
          : Refusal{ErrorCode::duplicateLink, "another session is about to end"};
    } else {
      // A dial of ours that gives way is not closed here: the peer will refuse it, and only then may it
      // close, see dialFailed.
      peer.link = link;
      peer.state = State::greeting;
      handle.generation = ++peer.generation;
      peer.description = std::move(description);
      welcome = introduction(peer);
      welcome.linkId = hello.linkId;
    }
  }
  if (refusal) {
    refuse(link, hello, *refusal);
    return;
  }
  link->send(welcome.encode(FrameKind::welcome), [](const Error&) {});
  greeted(handle, hello.session);
}

// Only now may other frames go out on the link: the peer expects the welcome first.
void LinkManager::greeted(const Handle& accepted, const SessionClaim& dialers) {
  Established established;
  {
    MutexLock lock(mutex_);
    Peer* peer = current(accepted, State::greeting);
    if (peer == nullptr || leaving_) { // it left, or came back as another incarnation; or we leave
      lock.unlock();
      accepted.link->close();
      return;
    }
    established = establish(*peer, accepted, dialers, peer->description);
  }
  begin(accepted, std::move(established));
}

/// Whether the peer has never had the present link, of which it has not had the welcome in time: it would dial for ever,
/// where the end of that link has been lost on the way.
bool LinkManager::hasGivenUp(const Peer& peer, const Hello& hello) const {
  return hello.session.established && peer.session && peer.session->id() == hello.session.id &&
      !peer.session->hasReceivedSinceLinked() &&
      timer_.now() - peer.connectedAt >= limits_.resumeDial;
}

std::optional<LinkManager::Handle> LinkManager::linkThatBroke(const Hello& hello) {
  MutexLock lock(mutex_);
  const Peer* peer = find(hello.self.id);
  const bool broke = peer != nullptr && peer->state == State::connected &&
      (peer->lastLinkId == hello.lastLinkId || hasGivenUp(*peer, hello));
  return broke ? std::optional(Handle{hello.self.id, peer->generation, peer->link}) : std::nullopt;
}

void LinkManager::refuse(
    const std::shared_ptr<Link>& link, const Hello& hello, const Refusal& refusal) {
  if (refusal.code != ErrorCode::duplicateLink) {
    const std::string who = hello.self.name.empty()
        ? "a worker of another version"
        : hello.self.describe() + " at " + hello.self.address;
    log(LogLevel::warning, "refused a connection of " + who + ": " + refusal.reason);
  }
  link->send(refusal.encode(), [](const Error&) {});
  // The peer closes after it has read the refusal: closing here could overtake it.
  link->receive([link](const Error&, IncomingFrame) { link->close(); });
}

} // namespace torchwire
