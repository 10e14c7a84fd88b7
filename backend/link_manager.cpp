#include "backend/link_manager.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "backend/log.h"
#include "backend/random.h"

namespace torchwire {
namespace {

constexpr std::chrono::milliseconds kLongestRetryDelay{1000};
// A duplicate dial is no failure: the peer's own is on its way. The limit only bounds the wait for a
// peer whose dial never arrives (a firewall that lets one direction through).
constexpr int kDuplicateAttempts = 30;

Error shutDownError() {
  return Error(ErrorCode::shutDown, "this worker is shutting down its RPC agent");
}

Error leftError(const WorkerRecord& peer) {
  return Error(ErrorCode::peerLeft, peer.describe() + " has left the RPC group");
}

Error lostError(const WorkerRecord& peer, const Error& cause) {
  return Error(
      ErrorCode::linkBroken,
      "lost the connection to " + peer.describe() + " at " + peer.address + " (" +
          cause.message() + "): its process may have ended, see its log");
}

Error dialError(const WorkerRecord& peer, const Error& cause) {
  if (cause.code() == ErrorCode::refused) {
    return Error(
        ErrorCode::refused, peer.describe() + " refused the connection: " + cause.message());
  }
  return Error(
      ErrorCode::unreachable,
      "cannot reach " + peer.describe() + " at " + peer.address + " (" + cause.message() +
          "): check that its process runs and that this host can connect to that address");
}

/// Why a link of this kind is of no use. TensorPipe would end the process at the first large tensor.
std::optional<std::string> objectionTo(const LinkDescription& description) {
  for (const auto& [what, name] :
       {std::pair("transport", description.transport), std::pair("channel", description.channel)}) {
    if (name == "none") {
      return std::string("it has no ") + what +
          " in common with this worker that works between the two: name one for both in _" + what +
          "s, or leave the option out";
    }
  }
  return std::nullopt;
}

void closeWithWarning(const std::shared_ptr<Link>& link, const FormatError& reason) {
  log(LogLevel::warning, std::string("closed a link without a valid hello: ") + reason.what());
  link->close();
}

bool isTransient(ErrorCode code) {
  return code == ErrorCode::unreachable || code == ErrorCode::linkBroken ||
      code == ErrorCode::duplicateLink;
}

} // namespace

LinkManager::LinkManager(LinkContext& context, Timer& timer, Events events, Limits limits)
    : context_(context), timer_(timer), events_(std::move(events)), limits_(limits) {}

std::string LinkManager::listen() {
  return context_.listen(
      [weak = weak_from_this()](std::shared_ptr<Link> link) {
        if (auto self = weak.lock()) {
          self->accept(std::move(link));
        }
      });
}

void LinkManager::setGroup(WorkerRecord self, uint64_t groupId) {
  decltype(early_) early;
  {
    MutexLock lock(mutex_);
    self_ = std::move(self);
    groupId_ = groupId;
    inGroup_ = true;
    early.swap(early_);
  }
  for (const auto& [link, hello] : early) {
    onHello(link, hello);
  }
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
  }
  if (former.link) {
    former.link->close();
  }
  const Error error(
      ErrorCode::linkBroken, former.record.describe() + " was started anew: its former process is gone");
  for (const Waiting& item : former.waiting) {
    item.sent(error);
  }
  if (former.state == State::connected) {
    events_.peerLost(record.id, error);
  }
}

void LinkManager::markLeft(WorkerId id) {
  std::shared_ptr<Link> link;
  std::deque<Waiting> waiting;
  Error error;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(id);
    if (peer == nullptr || peer->state == State::left) {
      return;
    }
    error = leftError(peer->record);
    peer->state = State::left;
    disconnected_.notify_all();
    ++peer->generation;
    link.swap(peer->link);
    waiting.swap(peer->waiting);
  }
  if (link) {
    link->close();
  }
  for (const Waiting& item : waiting) {
    item.sent(error);
  }
  events_.peerLost(id, error);
}

LinkManager::Peer* LinkManager::find(WorkerId id) {
  const auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : &it->second;
}

LinkManager::Peer* LinkManager::current(const Handle& handle, State state) {
  Peer* peer = find(handle.peer);
  const bool same =
      peer != nullptr && peer->generation == handle.generation && peer->state == state;
  return same ? peer : nullptr;
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

// ---- sending ------------------------------------------------------------------------------------

void LinkManager::send(WorkerId to, OutgoingFrame frame, Link::Sent sent) {
  std::shared_ptr<Link> link;
  Error error;
  bool dial = false;
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
    } else if (peer->state == State::losing) {
      error = lostError(peer->record, Error(ErrorCode::linkBroken, "just now"));
    } else if (peer->state == State::connected) {
      link = peer->link;
      countSent(*peer, frame);
    } else {
      peer->waiting.push_back({std::move(frame), std::move(sent)});
      dial = peer->state == State::idle;
      if (dial) {
        peer->state = State::dialling;
        peer->attempts = 0;
      }
    }
  }
  if (error) {
    sent(error);
  } else if (link) {
    deliver(*link, {std::move(frame), std::move(sent)});
  } else if (dial) {
    startDial(to);
  }
}

void LinkManager::sendIfConnected(WorkerId to, OutgoingFrame frame, Link::Sent sent) {
  std::shared_ptr<Link> link;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(to);
    if (peer != nullptr && peer->state == State::connected && !leaving_) { // the goodbye is the last frame
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

void LinkManager::deliver(Link& link, Waiting item) {
  if (item.frame.head.empty()) {
    item.sent(Error()); // connect(): the link was all that was asked for
  } else {
    link.send(std::move(item.frame), std::move(item.sent));
  }
}

// ---- dialling -----------------------------------------------------------------------------------

Hello LinkManager::introduction(const Peer& to) const {
  Hello hello;
  hello.self = self_;
  hello.groupId = groupId_;
  hello.toId = to.record.id;
  hello.toIncarnation = to.record.incarnation;
  hello.lastLinkId = to.lastLinkId;
  hello.offer = context_.offer();
  return hello;
}

void LinkManager::startDial(WorkerId to) {
  Handle dial{to, 0, nullptr};
  Hello hello;
  std::string address;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(to);
    if (peer == nullptr || peer->state != State::dialling || leaving_) {
      return;
    }
    dial.generation = ++peer->generation;
    ++peer->attempts;
    hello = introduction(*peer);
    hello.linkId = dial.linkId = randomNumber();
    address = peer->record.address;
  }
  try {
    dial.link = context_.dial(address);
  } catch (const std::exception& e) { // the address itself is of no use to this worker's transports
    dialFailed(dial, Error(ErrorCode::refused, std::string("its address cannot be dialled: ") + e.what()));
    return;
  }
  {
    MutexLock lock(mutex_);
    if (Peer* peer = current(dial, State::dialling)) {
      peer->link = dial.link;
    }
  }
  auto self = shared_from_this();
  dial.link->send(hello.encode(FrameKind::hello), [](const Error&) {
    // An error shows on the receive below too.
  });
  dial.link->receive([self, dial](const Error& error, IncomingFrame frame) {
    self->onDialReply(dial, error, frame);
  });
  timer_.after(limits_.handshake, [weak = weak_from_this(), dial] {
    if (auto self = weak.lock()) {
      self->dialFailed(dial, Error(ErrorCode::timeout, "it did not answer in time"));
    }
  });
}

void LinkManager::onDialReply(
    const Handle& dial, const Error& error, const IncomingFrame& frame) {
  if (error) {
    dialFailed(dial, error);
    return;
  }
  try {
    const FrameKind kind = kindOf(frame);
    if (kind == FrameKind::welcome) {
      onWelcome(dial, Hello::decode(frame));
    } else if (kind == FrameKind::refuse) {
      const Refusal refusal = Refusal::decode(frame);
      dialFailed(dial, Error(refusal.code, refusal.reason));
    } else {
      throw FormatError("a frame of kind " + std::to_string(static_cast<int>(kind)));
    }
  } catch (const FormatError& e) {
    dialFailed(dial, Error(ErrorCode::refused, std::string("no valid handshake: ") + e.what()));
  }
}

void LinkManager::onWelcome(const Handle& dial, const Hello& welcome) {
  std::deque<Waiting> waiting;
  LinkDescription description = context_.describe(welcome.offer); // may throw: before anything changes
  if (const auto objection = objectionTo(description)) {
    dialFailed(dial, Error(ErrorCode::refused, *objection));
    return;
  }
  {
    MutexLock lock(mutex_);
    Peer* peer = current(dial, State::dialling);
    if (peer == nullptr || leaving_) { // too late for a goodbye, so it must not come about
      lock.unlock();
      dial.link->close();
      return;
    }
    if (welcome.self.incarnation != peer->record.incarnation || welcome.linkId != dial.linkId) {
      throw FormatError("the welcome of another worker");
    }
    peer->state = State::connected;
    peer->link = dial.link;
    peer->lastLinkId = dial.linkId;
    peer->description = std::move(description);
    waiting.swap(peer->waiting);
    for (const Waiting& item : waiting) {
      countSent(*peer, item.frame);
    }
  }
  flush(dial, std::move(waiting));
  receiveNext(dial);
}

void LinkManager::dialFailed(const Handle& dial, const Error& error) {
  std::shared_ptr<Link> link;
  std::chrono::milliseconds delay{0};
  bool retry = false;
  uint64_t generation = 0;
  {
    MutexLock lock(mutex_);
    Peer* peer = current(dial, State::dialling);
    if (peer == nullptr) {
      // It was given up for the peer's own dial. Not before it is answered may it close: a TensorPipe
      // listener dies of a connection that ends before its first message.
      const Peer* any = find(dial.peer);
      const bool inUse = any != nullptr && any->link == dial.link; // the deadline of a dial that succeeded
      lock.unlock();
      if (dial.link && !inUse) {
        closeRefused(dial.link, error);
      }
      return;
    }
    link.swap(peer->link);
    generation = ++peer->generation; // whatever else this dial reports is stale
    const int attempts =
        error.code() == ErrorCode::duplicateLink ? kDuplicateAttempts : limits_.attempts;
    retry = isTransient(error.code()) && peer->attempts < attempts && !leaving_;
    delay = std::min(limits_.retryDelay * (1 << std::min(peer->attempts - 1, 10)), kLongestRetryDelay);
  }
  if (link) {
    closeRefused(link, error);
  }
  if (!retry) {
    failWaiting(dial.peer, generation, error);
    return;
  }
  timer_.after(delay, [weak = weak_from_this(), to = dial.peer, generation] {
    auto self = weak.lock();
    if (!self) {
      return;
    }
    {
      MutexLock lock(self->mutex_);
      if (self->current({to, generation, nullptr}, State::dialling) == nullptr) {
        return; // the peer's own dial came meanwhile
      }
    }
    self->startDial(to);
  });
}

void LinkManager::closeRefused(const std::shared_ptr<Link>& link, const Error& error) {
  const bool answered =
      error.code() == ErrorCode::refused || error.code() == ErrorCode::duplicateLink;
  if (answered && limits_.refusedGrace.count() > 0) {
    timer_.after(limits_.refusedGrace, [link] { link->close(); });
  } else {
    link->close();
  }
}

void LinkManager::failWaiting(WorkerId to, uint64_t generation, const Error& cause) {
  std::deque<Waiting> waiting;
  Error error;
  {
    MutexLock lock(mutex_);
    Peer* peer = current({to, generation, nullptr}, State::dialling);
    if (peer == nullptr) {
      return;
    }
    peer->state = State::idle;
    waiting.swap(peer->waiting);
    error = dialError(peer->record, cause);
  }
  log(LogLevel::warning, error.message());
  for (const Waiting& item : waiting) {
    item.sent(error);
  }
  events_.peerLost(to, error);
}

// ---- accepting ----------------------------------------------------------------------------------

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
    if (!self || error) {
      link->close();
      return;
    }
    Hello hello;
    try {
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
  {
    MutexLock lock(mutex_);
    if (!inGroup_) {
      early_.emplace_back(link, hello);
      return;
    }
    refusal = objectionToHello(hello, self_, groupId_);
    const Peer* peer = find(hello.self.id);
    known = peer != nullptr && peer->record.incarnation == hello.self.incarnation;
    if (leaving_ && !refusal) {
      refusal = Refusal{ErrorCode::refused, self_.describe() + " is shutting down"};
    }
  }
  if (!refusal && !known) {
    refusal = events_.stranger
        ? events_.stranger(hello)
        : Refusal{ErrorCode::refused, "it knows no " + hello.self.describe()};
    if (!refusal) {
      addPeer(hello.self);
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

bool LinkManager::keepsOurs(const Peer& peer, const Hello& hello) const {
  switch (peer.state) {
    case State::dialling: // a dial that waits for its next attempt gives way
      return peer.link != nullptr && self_.id < hello.self.id;
    case State::greeting:
    case State::connected: // it was dialled before this link came about
    case State::losing: // not before the calls on the old link have failed; the peer will try again
    case State::left: // its goodbye was quicker than this hello
      return true;
    case State::idle:
      return false;
  }
  return false;
}

void LinkManager::adopt(const std::shared_ptr<Link>& link, const Hello& hello) {
  LinkDescription description = context_.describe(hello.offer); // may throw: before anything changes
  if (const auto objection = objectionTo(description)) {
    refuse(link, hello, Refusal{ErrorCode::refused, *objection});
    return;
  }
  Handle handle{hello.self.id, 0, link, hello.linkId};
  if (const auto broken = linkThatBroke(hello)) { // the peer saw it before we did
    lost(*broken, Error(ErrorCode::linkBroken, "it dialled anew"));
  }
  Hello welcome;
  bool oursStands = false;
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[hello.self.id];
    oursStands = keepsOurs(peer, hello);
    if (!oursStands) {
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
  if (oursStands) {
    refuse(link, hello, Refusal{ErrorCode::duplicateLink, "there is another link or dial"});
    return;
  }
  link->send(welcome.encode(FrameKind::welcome), [](const Error&) {});
  greeted(handle);
}

// Only now may other frames go out on the link: the peer expects the welcome first.
void LinkManager::greeted(const Handle& accepted) {
  std::deque<Waiting> waiting;
  {
    MutexLock lock(mutex_);
    Peer* peer = current(accepted, State::greeting);
    if (peer == nullptr || leaving_) { // it left, or came back as another incarnation; or we leave
      lock.unlock();
      accepted.link->close();
      return;
    }
    peer->state = State::connected;
    peer->lastLinkId = accepted.linkId;
    waiting.swap(peer->waiting);
    for (const Waiting& item : waiting) {
      countSent(*peer, item.frame);
    }
  }
  flush(accepted, std::move(waiting));
  receiveNext(accepted);
}

std::optional<LinkManager::Handle> LinkManager::linkThatBroke(const Hello& hello) {
  MutexLock lock(mutex_);
  const Peer* peer = find(hello.self.id);
  const bool broke = peer != nullptr && peer->state == State::connected &&
      peer->lastLinkId == hello.lastLinkId;
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

// ---- a connected link ---------------------------------------------------------------------------

void LinkManager::flush(const Handle& connected, std::deque<Waiting> waiting) {
  for (Waiting& item : waiting) {
    deliver(*connected.link, std::move(item));
  }
}

void LinkManager::receiveNext(const Handle& connected) {
  auto self = shared_from_this();
  connected.link->receive([self, connected](const Error& error, IncomingFrame frame) {
    if (error) {
      self->lost(connected, error);
      return;
    }
    self->onFrame(connected, std::move(frame)); // quick: whatever takes time is handed to a pool
    self->receiveNext(connected);
  });
}

void LinkManager::countReceived(WorkerId from, const IncomingFrame& frame) {
  MutexLock lock(mutex_);
  Traffic& traffic = peers_[from].traffic;
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
    switch (kindOf(frame)) {
      case FrameKind::request:
      case FrameKind::response:
        countReceived(connected.peer, frame);
        events_.frame(connected.peer, std::move(frame));
        return;
      case FrameKind::goodbye:
        markLeft(connected.peer);
        return;
      default:
        throw FormatError("a second handshake");
    }
  } catch (const FormatError& e) {
    lost(connected, Error(ErrorCode::badFrame, std::string("it broke the protocol: ") + e.what()));
  }
}

// The calls on the link fail before a new link can be made: otherwise a call on the new one could be
// taken for one of them. A frame that is sent meanwhile goes to the closed link, which says so.
void LinkManager::lost(const Handle& connected, const Error& cause) {
  Handle closing = connected;
  Error error;
  bool quiet = false;
  {
    MutexLock lock(mutex_);
    Peer* peer = current(connected, State::connected);
    if (peer == nullptr) {
      return;
    }
    peer->state = State::losing;
    closing.generation = ++peer->generation;
    ++peer->traffic.linksLost;
    error = lostError(peer->record, cause);
    quiet = leaving_;
  }
  connected.link->close();
  if (!quiet) {
    log(LogLevel::warning, error.message());
  }
  events_.peerLost(connected.peer, error);

  MutexLock lock(mutex_);
  if (Peer* peer = current(closing, State::losing)) {
    peer->state = State::idle;
    peer->link = nullptr;
    disconnected_.notify_all();
  }
}

// ---- leaving ------------------------------------------------------------------------------------

void LinkManager::leave(std::chrono::milliseconds patience) {
  std::vector<std::shared_ptr<Link>> connected;
  std::vector<std::shared_ptr<Link>> others;
  std::vector<Waiting> waiting;
  {
    MutexLock lock(mutex_);
    leaving_ = true;
    for (auto& [id, peer] : peers_) {
      if (peer.link) {
        (peer.state == State::connected ? connected : others).push_back(peer.link);
      }
      std::move(peer.waiting.begin(), peer.waiting.end(), std::back_inserter(waiting));
      peer.waiting.clear();
    }
    for (auto& [link, hello] : early_) {
      others.push_back(link);
    }
    early_.clear();
  }
  for (const Waiting& item : waiting) {
    item.sent(shutDownError());
  }
  for (const auto& link : connected) {
    link->send(bareFrame(FrameKind::goodbye), [](const Error&) {});
  }
  // A peer closes its end once it has read the goodbye. To wait for that, rather than for the write,
  // means that every peer knows of the leave when this returns.
  {
    MutexLock lock(mutex_);
    disconnected_.wait_for(lock, patience, [this] { return noneConnected(); });
  }
  for (const auto& link : others) {
    link->close();
  }
  for (const auto& link : connected) {
    link->close();
  }
}

bool LinkManager::noneConnected() const {
  return std::none_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    return entry.second.state == State::connected;
  });
}

std::vector<PeerStatus> LinkManager::status() const {
  static const std::map<State, std::string> kNames = {
      {State::idle, "idle"},
      {State::dialling, "dialling"},
      {State::greeting, "greeting"},
      {State::connected, "connected"},
      {State::losing, "losing"},
      {State::left, "left"}};
  std::vector<PeerStatus> all;
  MutexLock lock(mutex_);
  for (const auto& [id, peer] : peers_) {
    PeerStatus status;
    status.record = peer.record;
    status.state = kNames.at(peer.state);
    status.link = peer.description;
    status.traffic = peer.traffic;
    all.push_back(std::move(status));
  }
  return all;
}

} // namespace torchwire
