#include "backend/link/link_manager.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "backend/base/interruption.h"
#include "backend/base/log.h"
#include "backend/link/link_errors.h"

namespace torchwire {
namespace {

// Former incarnations of a peer. A hello of theirs may be on its way for seconds, in which few more can have come.
constexpr size_t kRemembered = 64;

} // namespace

LinkManager::LinkManager(LinkContext& context, Timer& timer, Events events, Limits limits)
    : context_(context), timer_(timer), events_(std::move(events)), limits_(limits) {}

std::string LinkManager::listen() {
  return context_.listen([weak = weak_from_this()](std::shared_ptr<Link> link) {
    if (auto self = weak.lock()) {
      self->accept(std::move(link));
    }
  });
}

void LinkManager::setGroup(WorkerRecord self, uint64_t groupId) {
  MutexLock lock(mutex_);
  self_ = std::move(self);
  groupId_ = groupId;
}

void LinkManager::acceptPeers() {
  std::vector<Greeting> early;
  {
    MutexLock lock(mutex_);
    acceptsPeers_ = true;
    early.swap(early_);
  }
  for (const auto& [link, hello] : early) {
    onHello(link, hello);
  }
}

void LinkManager::addLoopback(const WorkerRecord& self, std::shared_ptr<Link> loopback) {
  {
    MutexLock lock(mutex_);
    own_ = std::make_unique<Peer>();
    own_->record = self;
    own_->state = State::connected;
    own_->link = loopback;
    own_->description = {"loopback", ""};
    own_->traffic.carryBy(own_->description);
  }
  receiveNext({self.id, 0, std::move(loopback)});
}

void LinkManager::addPeer(const WorkerRecord& record) {
  Peer former;
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[record.id];
    if (peer.record.incarnation == record.incarnation) {
      return;
    }
    former = std::move(peer);
    peer = Peer();
    peer.record = record;
    peer.generation = former.generation + 1; // callbacks for the former incarnation are stale
    peer.traffic = former.traffic;
    if (former.record.incarnation != 0) {
      replaced_.store(true, std::memory_order_release);
      peer.formerIncarnations = former.formerIncarnations;
      peer.formerIncarnations.push_back(former.record.incarnation);
      if (peer.formerIncarnations.size() > kRemembered) {
        peer.formerIncarnations.erase(peer.formerIncarnations.begin());
      }
    }
  }
  if (former.link) {
    former.link->close();
  }
  const Error error(
      ErrorCode::workerDied,
      former.record.describe() + " was started anew: its former process is gone");
  if (former.state == State::connected || isResuming(former)) {
    tellOfLoss(record.id, error, former.session, std::move(former.waiting))();
  } else {
    failSends(former.waiting, error);
  }
}

void LinkManager::markLeft(WorkerId id, Goodbye goodbye) {
  uint64_t incarnation = 0;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(id);
    if (peer == nullptr) {
      return;
    }
    incarnation = peer->record.incarnation;
    if (!isGone(peer->state)) {
      peer->goodbye = std::move(goodbye);
    }
  }
  endPeer(id, incarnation, State::left);
}

// By the kernel's order the end of the link is there before that of the process can be known, behind what the peer has sent.
void LinkManager::markDead(WorkerId id, uint64_t incarnation, const std::string& reason) {
  {
    MutexLock lock(mutex_);
    Peer* peer = find(id);
    if (peer == nullptr || peer->record.incarnation != incarnation || !peer->death.empty() ||
        isGone(peer->state)) {
      return;
    }
    peer->death = reason;
    if (peer->state == State::connected || peer->state == State::disconnecting) {
      lock.unlock();
      timer_.after(limits_.deathGrace, [weak = weak_from_this(), id, incarnation] {
        if (auto self = weak.lock()) {
          self->endPeer(id, incarnation, State::dead);
        }
      });
      return;
    }
  }
  endPeer(id, incarnation, State::dead);
}

void LinkManager::reclaimed(WorkerId id, uint64_t incarnation) {
  std::vector<Greeting> successors;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(id);
    if (peer == nullptr || peer->record.incarnation != incarnation) {
      return;
    }
    peer->isReclaimed = true;
    for (auto it = successors_.begin(); it != successors_.end();) {
      if (it->second.self.id == id) {
        successors.push_back(std::move(*it));
        it = successors_.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (const auto& [link, hello] : successors) {
    onHello(link, hello);
  }
}

/// Does nothing if it has ended before.
void LinkManager::endPeer(WorkerId id, uint64_t incarnation, State state) {
  std::shared_ptr<Link> link;
  std::deque<Waiting> waiting;
  std::unique_ptr<Session> session;
  WorkerRecord record;
  Error error;
  std::optional<Refusal> lastWord; // to a process that may live after all
  {
    MutexLock lock(mutex_);
    Peer* peer = find(id);
    if (peer == nullptr || peer->record.incarnation != incarnation || isGone(peer->state)) {
      return;
    }
    if (state == State::dead && peer->state == State::connected && !declaredDead_) {
      lastWord = goneRefusal(*peer);
    }
    peer->state = state;
    record = peer->record;
    error = errorOfGone(*peer);
    disconnected_.notify_all();
    ++peer->generation;
    link.swap(peer->link);
    waiting.swap(peer->waiting);
    session.swap(peer->session);
  }
  if (link && lastWord) {
    closeWithReason(link, *lastWord);
  } else if (link) {
    link->close();
  }
  tellOfLoss(id, error, session, std::move(waiting))();
  if (events_.peerGone) {
    events_.peerGone(record, error);
  } else {
    reclaimed(id, incarnation);
  }
}

Error LinkManager::errorOfGone(const Peer& peer) const {
  if (declaredDead_) {
    return *declaredDead_;
  }
  return peer.state == State::dead ? diedError(peer.record, peer.death)
                                   : leftError(peer.record, peer.goodbye.reason);
}

void LinkManager::endPart(const std::string& reason) {
  std::vector<std::pair<WorkerId, uint64_t>> peers;
  {
    MutexLock lock(mutex_);
    if (declaredDead_) {
      return;
    }
    declaredDead_ = declaredDeadError(reason);
    for (const auto& [id, peer] : peers_) {
      peers.emplace_back(id, peer.record.incarnation);
    }
  }
  log(LogLevel::error, declaredDeadError(reason).message());
  for (const auto& [id, incarnation] : peers) {
    endPeer(id, incarnation, State::dead);
  }
}

std::optional<Error> LinkManager::declaredDead() const {
  MutexLock lock(mutex_);
  return declaredDead_;
}

LinkManager::Peer* LinkManager::find(WorkerId id) {
  if (own_ && own_->record.id == id) {
    return own_.get();
  }
  const auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : &it->second;
}

LinkManager::Peer* LinkManager::current(const Handle& handle, State state) {
  Peer* peer = find(handle.peer);
  const bool same =
      peer != nullptr && peer->generation == handle.generation && peer->state == state;
  return same ? peer : nullptr;
}

Hello LinkManager::introduction(const Peer& to) const {
  Hello hello;
  hello.self = self_;
  hello.groupId = groupId_;
  hello.toId = to.record.id;
  hello.toIncarnation = to.record.incarnation;
  hello.lastLinkId = to.lastLinkId;
  if (to.session) {
    hello.session = to.session->claim();
    hello.session.former = to.ended.former();
  }
  hello.offer = context_.offer();
  return hello;
}

void LinkManager::explainLeave(Goodbye goodbye) {
  MutexLock lock(mutex_);
  if (goodbye_.reason.empty()) {
    goodbye_ = std::move(goodbye);
  }
}

Goodbye LinkManager::ownGoodbye() const {
  MutexLock lock(mutex_);
  return goodbye_;
}

bool LinkManager::isLeaving() const {
  MutexLock lock(mutex_);
  return leaving_;
}

void LinkManager::leave(
    std::chrono::milliseconds patience, const std::function<bool()>& isHurried) {
  Goodbye goodbye;
  std::vector<std::shared_ptr<Link>> connected;
  std::vector<std::shared_ptr<Link>> others;
  std::vector<Waiting> waiting;
  {
    MutexLock lock(mutex_);
    leaving_ = true;
    goodbye = goodbye_;
    for (auto& [id, peer] : peers_) {
      if (peer.link) {
        (peer.state == State::connected ? connected : others).push_back(peer.link);
      }
      std::move(peer.waiting.begin(), peer.waiting.end(), std::back_inserter(waiting));
      peer.waiting.clear();
    }
    for (const auto* greetings : {&early_, &successors_}) {
      for (const auto& [link, hello] : *greetings) {
        others.push_back(link);
      }
    }
    if (own_) {
      others.push_back(own_->link);
    }
    early_.clear();
    successors_.clear();
  }
  for (const Waiting& item : waiting) {
    failUnsent(item.frame, item.sent, shutDownError().notSent());
  }
  for (const auto& link : connected) {
    link->send(goodbye.encode(), [](const Error&) {});
  }
  // A peer closes its end once it has read the goodbye. To wait for that, rather than for the write,
  // means that every peer knows of the leave when this returns.
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!awaitDisconnection(end) && !isHurried()) {
  }
  for (const auto& link : others) {
    link->close();
  }
  for (const auto& link : connected) {
    link->close();
  }
}

/// Whether no peer is connected or the time is over, after a while at most.
bool LinkManager::awaitDisconnection(std::chrono::steady_clock::time_point end) {
  const auto next = std::min(end, std::chrono::steady_clock::now() + kInterruptionInterval);
  MutexLock lock(mutex_);
  return disconnected_.wait_until(
             lock, next, [this]() REQUIRES(mutex_) { return noneConnected(); }) ||
      next == end;
}

bool LinkManager::noneConnected() const {
  return std::none_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    return entry.second.state == State::connected;
  });
}

bool LinkManager::isOwn(WorkerId id) const {
  MutexLock lock(mutex_);
  return own_ && own_->record.id == id;
}

uint64_t LinkManager::incarnationOf(WorkerId id) const {
  MutexLock lock(mutex_);
  const auto peer = peers_.find(id);
  return peer == peers_.end() ? 0 : peer->second.record.incarnation;
}

bool LinkManager::isFormer(WorkerId id, uint64_t incarnation) const {
  return replaced_.load(std::memory_order_acquire) && !isOwn(id) &&
      incarnationOf(id) != incarnation;
}

std::vector<PeerStatus> LinkManager::status() const {
  std::vector<PeerStatus> all;
  MutexLock lock(mutex_);
  for (const auto& [id, peer] : peers_) {
    all.push_back(statusOf(peer));
  }
  return all;
}

std::optional<PeerStatus> LinkManager::statusOf(WorkerId id) const {
  MutexLock lock(mutex_);
  const auto peer = peers_.find(id);
  return peer == peers_.end() || isGone(peer->second.state) ? std::nullopt
                                                            : std::optional(statusOf(peer->second));
}

PeerStatus LinkManager::statusOf(const Peer& peer) {
  const State state = isResuming(peer) ? State::resuming : peer.state;
  return {peer.record, state, peer.description, peer.traffic};
}

Goodbye LinkManager::goodbyeOf(WorkerId id) const {
  MutexLock lock(mutex_);
  const auto peer = peers_.find(id);
  return peer == peers_.end() ? Goodbye() : peer->second.goodbye;
}

const char* nameOf(PeerState state) {
  switch (state) {
    case PeerState::idle:
      return "idle";
    case PeerState::dialing:
      return "dialing";
    case PeerState::greeting:
      return "greeting";
    case PeerState::connected:
      return "connected";
    case PeerState::resuming:
      return "resuming";
    case PeerState::disconnecting:
      return "disconnecting";
    case PeerState::left:
      return "left";
    case PeerState::dead:
      break;
  }
  return "dead";
}

} // namespace torchwire
