// FaultyLink: the way out, and the end.
#include "backend/faults/faulty_link.h"

#include <memory>
#include <utility>

#include "backend/faults/alarm.h"
#include "backend/faults/fault_errors.h"
#include "backend/faults/faulty_frame.h"

namespace torchwire::faults {
namespace {

bool isOfCall(FrameKind kind) {
  return kind == FrameKind::request || kind == FrameKind::response;
}

double secondsUntil(Partitions::Clock::time_point time) {
  return std::chrono::duration<double>(time - Partitions::Clock::now()).count();
}

// One callback for two frames, which share their memory: called when both have gone.
Link::Sent calledByBoth(Link::Sent sent) {
  struct Both {
    explicit Both(Link::Sent s) : sent(std::move(s)) {}

    const Link::Sent sent;
    Mutex mutex{LockRank::sentTwice};
    int left GUARDED_BY(mutex) = 2;
    Error error GUARDED_BY(mutex);
  };
  return [both = std::make_shared<Both>(std::move(sent))](const Error& error) {
    Error first;
    {
      MutexLock lock(both->mutex);
      if (!both->error) {
        both->error = error;
      }
      if (--both->left > 0) {
        return;
      }
      first = both->error;
    }
    both->sent(first);
  };
}

} // namespace

std::shared_ptr<FaultyLink> FaultyLink::wrap(
    std::shared_ptr<Link> inner, std::shared_ptr<Injector> injector, Timer& timer,
    std::string peer) {
  std::shared_ptr<FaultyLink> link(
      new FaultyLink(std::move(inner), std::move(injector), timer, std::move(peer)));
  link->injector_->watch(link);
  return link;
}

FaultyLink::FaultyLink(
    std::shared_ptr<Link> inner, std::shared_ptr<Injector> injector, Timer& timer, std::string peer)
    : inner_(std::move(inner)),
      injector_(std::move(injector)),
      timer_(timer),
      toSelf_(peer == injector_->self()),
      peer_(std::move(peer)) {}

FaultyLink::~FaultyLink() {
  close();
}

std::string FaultyLink::peer() const {
  MutexLock lock(mutex_);
  return peer_;
}

// ---- decisions ----------------------------------------------------------------------------------

void FaultyLink::send(OutgoingFrame frame, Sent sent) {
  Item item{std::move(frame), std::move(sent)};
  if (const auto header = headerIn(item.frame.head)) {
    item.kind = header->kind;
    item.at = pointOf(item.frame, *header);
  }
  bool closed = false;
  if (!injector_->quiet() || held_ > 0) {
    MutexLock lock(mutex_);
    closed = closed_;
  }
  if (closed || (injector_->quiet() && held_ == 0)) {
    inner_->send(std::move(item.frame), std::move(item.sent));
    return;
  }
  if (item.at) {
    if (const auto fault = injector_->decide(*item.at)) {
      inject(std::move(item), *fault);
      return;
    }
  }
  goOut(std::move(item));
}

std::optional<FaultPoint> FaultyLink::pointOf(
    const OutgoingFrame& frame, const FrameHeader& header) {
  FaultPoint at;
  at.callId = header.callId;
  at.bytes = frame.bytes();
  if (header.kind == FrameKind::request) {
    if (injector_->quiet()) {
      return std::nullopt;
    }
    at.phase = Phase::request;
    at.from = injector_->self();
    at.to = peer();
    at.message = header.messageType;
    at.content = injector_->readsContent() ? contentOf(frame) : 0;
    return at;
  }
  if (header.kind == FrameKind::response) {
    at.phase = Phase::response;
    at.from = peer();
    at.to = injector_->self();
    if (const auto request = injector_->requests().take(at.from, header.callId)) {
      at.message = request->type;
      at.content = request->content;
      return at;
    }
  }
  return std::nullopt;
}

void FaultyLink::inject(Item item, const Entry& fault) {
  switch (fault.action) {
    case Action::drop:
      item.sent(Error());
      break;
    case Action::fail:
      if (item.kind == FrameKind::request) {
        item.sent(failedBy(fault));
      } else {
        item.frame = exceptionFrame(fault.callId, failureText(fault));
        goOut(std::move(item));
      }
      break;
    case Action::delay:
    case Action::reorder:
      wait(std::move(item), fault);
      break;
    case Action::duplicate:
      sendTwice(std::move(item));
      break;
    case Action::close:
      breakLink(fault);
      item.sent(brokenBy(fault));
      break;
    case Action::corrupt:
      corrupt(item.frame, fault.byte);
      goOut(std::move(item));
      break;
    default: // none that a plan can have here, see isPossible()
      goOut(std::move(item));
  }
}

void FaultyLink::sendTwice(Item item) {
  item.sent = calledByBoth(std::move(item.sent));
  Item second = item;
  second.midTensorDone = true; // its tensors are the first one's
  goOut(std::move(item));
  goOut(std::move(second));
}

// ---- waiting: delay and reorder -----------------------------------------------------------------

std::optional<uint64_t> FaultyLink::keep(Item item, Wait kind) {
  {
    MutexLock lock(mutex_);
    if (!closed_) {
      const uint64_t id = next_++;
      ++held_;
      waiting_.emplace(id, WaitingItem{std::move(item), kind == Wait::reorder});
      stalled_ = stalled_ || kind == Wait::stall;
      return id;
    }
  }
  item.sent(closedMeanwhile());
  return std::nullopt;
}

void FaultyLink::wait(Item item, const Entry& fault) {
  const auto id =
      keep(std::move(item), fault.action == Action::reorder ? Wait::reorder : Wait::delay);
  if (!id) {
    return;
  }
  setAlarm(timer_, fault.seconds, [weak = weak_from_this(), id = *id](bool inTime) {
    if (const auto self = weak.lock()) {
      self->endWait(id, inTime);
    }
  });
}

void FaultyLink::endWait(uint64_t id, bool inTime) {
  Item item;
  {
    MutexLock lock(mutex_);
    const auto it = waiting_.find(id);
    if (it == waiting_.end()) {
      return;
    }
    item = std::move(it->second.item);
    waiting_.erase(it);
  }
  if (inTime) {
    goOut(std::move(item));
  } else {
    item.sent(heldForEver());
  }
  --held_; // only now, so that what is sent meanwhile takes the same way
}

// Of what has waited since before `from`: a frame that came while the present one was sent is none that this
// one is the next to.
void FaultyLink::sendWaitingForNext(uint64_t from) {
  if (held_ == 0) {
    return;
  }
  std::vector<Item> items;
  {
    MutexLock lock(mutex_);
    std::erase_if(waiting_, [&](auto& entry) {
      const bool goes = entry.second.untilNext && entry.first < from;
      if (goes) {
        items.push_back(std::move(entry.second.item));
      }
      return goes;
    });
  }
  for (Item& item : items) {
    goOut(std::move(item));
    --held_;
  }
}

// ---- the gate: partitions -----------------------------------------------------------------------

void FaultyLink::goOut(Item item) {
  const auto cut = injector_->cut(peer());
  if (cut && item.at) {
    injector_->logHeld(*cut, *item.at);
  }
  bool atOnce = false;
  {
    MutexLock lock(mutex_);
    atOnce = closed_ || (!cut && gate_.empty() && !passing_ && !stalled_);
    if (!atOnce) {
      ++held_;
      gate_.push_back(std::move(item));
    }
  }
  if (atOnce) {
    pass(std::move(item));
  } else {
    openGate(); // the plan may have changed meanwhile
  }
}

// One thread at a time, for the order's sake.
void FaultyLink::openGate() {
  for (;;) {
    const auto cut = injector_->cut(peer());
    Item item;
    {
      MutexLock lock(mutex_);
      if (passing_ || stalled_ || gate_.empty()) {
        return;
      }
      if (!cut) {
        passing_ = true;
        item = std::move(gate_.front());
        gate_.pop_front();
      }
    }
    if (cut) {
      alarmGate(cut->until);
      return;
    }
    pass(std::move(item));
    MutexLock lock(mutex_);
    passing_ = false;
    --held_;
  }
}

void FaultyLink::alarmGate(Partitions::Clock::time_point until) {
  {
    MutexLock lock(mutex_);
    if (closed_ || (gateAlarm_ && *gateAlarm_ <= until)) {
      return;
    }
    gateAlarm_ = until;
  }
  setAlarm(timer_, secondsUntil(until), [weak = weak_from_this(), until](bool inTime) {
    if (const auto self = weak.lock()) {
      self->onGateAlarm(until, inTime);
    }
  });
}

void FaultyLink::onGateAlarm(Partitions::Clock::time_point until, bool inTime) {
  std::deque<Item> lost;
  {
    MutexLock lock(mutex_);
    if (gateAlarm_ == until) {
      gateAlarm_.reset();
    }
    if (!inTime) {
      lost.swap(gate_);
      held_ -= lost.size();
    }
  }
  for (const Item& item : lost) {
    item.sent(heldForEver());
  }
  if (inTime) {
    openGate();
  }
}

void FaultyLink::planChanged() {
  std::optional<Entry> torn;
  {
    MutexLock lock(mutex_);
    torn.swap(torn_);
  }
  if (torn) {
    breakLink(*torn);
  }
  if (held_ > 0) {
    openGate();
  }
}

void FaultyLink::pass(Item item) {
  const bool isNext = isOfCall(item.kind);
  uint64_t from = 0;
  {
    MutexLock lock(mutex_);
    from = next_;
  }
  if (!injectInTensors(item)) {
    inner_->send(std::move(item.frame), std::move(item.sent));
  }
  if (isNext) {
    sendWaitingForNext(from);
  }
}

// ---- the end ------------------------------------------------------------------------------------

std::vector<FaultyLink::Item> FaultyLink::takeHeld() {
  std::vector<Item> items;
  for (auto& [id, waiting] : waiting_) {
    items.push_back(std::move(waiting.item));
  }
  waiting_.clear();
  for (Item& item : gate_) {
    items.push_back(std::move(item));
  }
  gate_.clear();
  held_ -= items.size();
  stalled_ = false;
  return items;
}

void FaultyLink::close() {
  const auto alive =
      weak_from_this().lock(); // a callback may hold the last reference, none if destroyed
  std::vector<Item> held;
  std::deque<IncomingFrame> arrived;
  std::map<uint64_t, WaitingArrival> waitingArrivals;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    held = takeHeld();
    arrived.swap(arrived_);
    waitingArrivals.swap(waitingArrivals_);
    if (!end_) {
      end_ = Error(ErrorCode::linkBroken, "the link was closed on this side");
    }
  }
  inner_->close();
  for (const Item& item : held) {
    item.sent(closedMeanwhile());
  }
  deliver();
}

void FaultyLink::breakLink(const Entry& fault, std::optional<IncomingFrame> last) {
  std::vector<Item> held;
  {
    MutexLock lock(mutex_);
    if (closed_) {
      return;
    }
    held = takeHeld();
    waitingArrivals_.clear();
    if (!toSelf_) {
      closed_ = true;
      if (!end_) {
        if (last) {
          arrived_.push_back(std::move(*last));
        }
        end_ = brokenBy(fault);
      }
    }
  }
  if (toSelf_) {
    failOwnCalls(fault, held, std::move(last));
  } else {
    inner_->close();
  }
  for (const Item& item : held) {
    item.sent(brokenBy(fault));
  }
  deliver(); // what has arrived still goes first
}

// A worker dials no new link to itself, so that one stays; but what was on it is lost, and the calls fail as
// they do at the loss of a peer.
void FaultyLink::failOwnCalls(
    const Entry& fault, const std::vector<Item>& held, std::optional<IncomingFrame> last) {
  std::vector<uint64_t> calls = injector_->requests().takeAll(injector_->self());
  if (fault.phase == Phase::response || fault.phase == Phase::midTensor) {
    calls.push_back(fault.callId);
  }
  for (const Item& item : held) {
    if (item.kind == FrameKind::response && item.at) {
      calls.push_back(item.at->callId);
    }
  }
  MutexLock lock(mutex_);
  if (last) {
    arrived_.push_back(std::move(*last));
  }
  for (const uint64_t call : calls) {
    arrived_.push_back(loopBack(exceptionFrame(call, brokenLinkText(fault))));
  }
}

} // namespace torchwire::faults
