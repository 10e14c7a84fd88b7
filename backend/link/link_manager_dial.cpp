// LinkManager: dialing, from the first attempt to the welcome or to giving up.
#include "backend/link/link_manager.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "backend/base/log.h"
#include "backend/base/random.h"
#include "backend/base/resource_limits.h"
#include "backend/link/link_errors.h"

namespace torchwire {
namespace {

constexpr std::chrono::milliseconds kMaxRetryDelay{1000};
// A duplicate dial is no failure: the peer's own is on its way. The limit only bounds the wait for a
// peer whose dial never arrives (a firewall that lets one direction through).
constexpr int kDuplicateAttempts = 30;
// A peer is dead where this many dials in a row have met another process of its rank.
constexpr int kReplacedDials = 2;
// To resume a session: before dials take twice as long, for a network whose answers do.
constexpr int kShortDials = 6;

bool isTransient(ErrorCode code) {
  return code == ErrorCode::unreachable || code == ErrorCode::nobodyListens ||
      code == ErrorCode::linkBroken || code == ErrorCode::duplicateLink ||
      code == ErrorCode::atLimit ||
      code == ErrorCode::notAdmitted || // nothing proves that it was the peer's word
      code == ErrorCode::workerDied; // a damaged hello may have meant another incarnation
}

} // namespace

/// Whether a first dial to the peer waits for the peer's.
bool LinkManager::awaitsDialOf(const Peer& peer) const {
  if (self_.id < peer.record.id) {
    return false;
  }
  const auto dialing = std::count_if(peers_.begin(), peers_.end(), [](const auto& entry) {
    return entry.second.state == State::dialing;
  });
  return static_cast<size_t>(dialing) > limits_.manyDials;
}

void LinkManager::startDial(WorkerId to) {
  Handle dial{to, 0, nullptr};
  Hello hello;
  WorkerRecord record;
  std::chrono::milliseconds patience = limits_.handshake;
  {
    MutexLock lock(mutex_);
    Peer* peer = find(to);
    if (peer == nullptr || peer->state != State::dialing || leaving_) {
      return;
    }
    if (limits_.sessionTimeout.count() > 0 && !peer->session) {
      beginSession(*peer, 1);
    }
    if (isResuming(*peer)) {
      patience = std::min(
          patience, limits_.resumeDial * (1 << std::min(peer->attempts / kShortDials, 10)));
    }
    dial.generation = ++peer->generation;
    ++peer->attempts;
    hello = introduction(*peer);
    hello.linkId = dial.linkId = randomNumber();
    record = peer->record;
  }
  try {
    dial.link = context_.dial(record);
  } catch (const std::exception& e) { // the address itself is of no use to this worker's transports
    dialFailed(
        dial, Error(ErrorCode::refused, std::string("its address cannot be dialed: ") + e.what()));
    return;
  }
  bool gaveWay = true;
  {
    MutexLock lock(mutex_);
    if (Peer* peer = current(dial, State::dialing)) {
      peer->link = dial.link;
      gaveWay = false;
    }
  }
  if (gaveWay) { // to the peer's own dial, just now: a hello would make it give way to this one
    closeRefused(dial.link, Error(ErrorCode::duplicateLink, "the peer's own dial was quicker"));
    return;
  }
  auto self = shared_from_this();
  dial.link->send(hello.encode(FrameKind::hello), [](const Error&) {
    // An error shows on the receive below too.
  });
  dial.link->receive([self, dial](const Error& error, IncomingFrame frame) {
    self->onDialReply(dial, error, frame);
  });
  timer_.after(patience, [weak = weak_from_this(), dial] {
    if (auto self = weak.lock()) {
      self->dialFailed(dial, Error(ErrorCode::timeout, "it did not answer in time"));
    }
  });
}

void LinkManager::onDialReply(const Handle& dial, const Error& error, const IncomingFrame& frame) {
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
  Established established;
  LinkDescription description =
      context_.describe(welcome.offer); // may throw: before anything changes
  if (const auto objection = objectionTo(description)) {
    dialFailed(dial, Error(ErrorCode::refused, *objection));
    return;
  }
  {
    MutexLock lock(mutex_);
    Peer* peer = current(dial, State::dialing);
    if (peer == nullptr || leaving_) { // too late for a goodbye, so it must not come about
      lock.unlock();
      dial.link->close();
      return;
    }
    if (welcome.self.incarnation != peer->record.incarnation || welcome.linkId != dial.linkId) {
      throw FormatError("the welcome of another worker");
    }
    if (!takesWelcome(*peer, welcome.session)) {
      throw FormatError("the welcome to another session");
    }
    established = establish(*peer, dial, welcome.session, std::move(description));
  }
  begin(dial, std::move(established));
}

void LinkManager::dialFailed(const Handle& dial, const Error& error) {
  // Before the link closes its descriptors. Of files that TensorPipe has missed no error of ours says so.
  const auto files = isTransient(error.code()) ? reachedFileLimit() : std::nullopt;
  const bool limit = files || error.code() == ErrorCode::atLimit;
  std::shared_ptr<Link> link;
  uint64_t incarnation = 0;
  std::chrono::milliseconds delay{0};
  bool retry = false;
  uint64_t generation = 0;
  uint64_t resumed = 0; // the session
  bool replaced = false; // by another process
  Error cause = error;
  {
    MutexLock lock(mutex_);
    Peer* peer = current(dial, State::dialing);
    if (peer == nullptr) {
      // It was given up for the peer's own dial. Not before it is answered may it close: a TensorPipe
      // listener dies of a connection that ends before its first message.
      const Peer* any = find(dial.peer);
      const bool inUse =
          any != nullptr && any->link == dial.link; // the deadline of a dial that succeeded
      lock.unlock();
      if (dial.link && !inUse) {
        closeRefused(dial.link, error);
      }
      return;
    }
    link.swap(peer->link);
    incarnation = peer->record.incarnation;
    generation = ++peer->generation; // whatever else this dial reports is stale
    peer->replacedDials = error.code() == ErrorCode::workerDied ? peer->replacedDials + 1 : 0;
    replaced = peer->replacedDials >= kReplacedDials;
    if (files) {
      cause = Error(ErrorCode::atLimit, self_.describe() + " " + *files, Executed::no);
    } else if (limit) {
      cause = error.notSent();
    }
    delay = std::min(limits_.retryDelay * (1 << std::min(peer->attempts - 1, 10)), kMaxRetryDelay);
    if (isResuming(*peer)) { // until the session's time is over
      resumed = peer->session->serial();
      retry = !isFinal(*peer, error.code());
      delay = std::min(delay, limits_.resumeRetryDelay);
    } else {
      const int attempts =
          error.code() == ErrorCode::duplicateLink ? kDuplicateAttempts : limits_.attempts;
      retry = isTransient(error.code()) && !limit && !leaving_ &&
          (peer->attempts < attempts || peer->replacedDials == 1);
    }
  }
  if (link) {
    closeRefused(link, error);
  }
  if (replaced || error.code() == ErrorCode::partOver) {
    markDead(
        dial.peer, incarnation,
        replaced ? "another process of its rank answers at its address"
                 : "others have declared it dead");
  } else if (retry) {
    redialAfter(delay, dial.peer, generation);
  } else if (resumed != 0) {
    endSession(dial.peer, resumed, error);
  } else {
    failWaiting(dial.peer, generation, cause);
  }
  if (error.code() == ErrorCode::declaredDead && events_.declaredDead) {
    events_.declaredDead(error.message());
  }
}

void LinkManager::redialAfter(std::chrono::milliseconds delay, WorkerId to, uint64_t generation) {
  timer_.after(delay, [weak = weak_from_this(), to, generation] {
    if (auto self = weak.lock()) {
      self->redial(to, generation);
    }
  });
}

void LinkManager::redial(WorkerId to, uint64_t generation) {
  {
    MutexLock lock(mutex_);
    if (current({to, generation, nullptr}, State::dialing) == nullptr) {
      return; // the peer's own dial came meanwhile
    }
  }
  startDial(to);
}

void LinkManager::closeRefused(const std::shared_ptr<Link>& link, const Error& error) {
  const bool answered = error.code() == ErrorCode::refused ||
      error.code() == ErrorCode::duplicateLink || error.code() == ErrorCode::sessionUnknown ||
      error.code() == ErrorCode::declaredDead || error.code() == ErrorCode::partOver ||
      error.code() == ErrorCode::workerDied;
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
    Peer* peer = current({to, generation, nullptr}, State::dialing);
    if (peer == nullptr) {
      return;
    }
    peer->session.reset(); // it has had no link
    waiting.swap(peer->waiting);
    error = dialError(peer->record, cause).notSent();
    peer->state = State::disconnecting;
    peer->lost = error;
    ++generation;
    peer->generation = generation;
  }
  log(LogLevel::warning, error.message());
  Task complete = tellOfLoss(to, error, nullptr, std::move(waiting));
  disconnected({to, generation, nullptr});
  complete();
}

} // namespace torchwire
