#include "test/unit/support/simulated_faulty_link.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace torchwire {

// ---- decisions ----------------------------------------------------------------------------------

bool SimulatedFaults::happens(double probability) {
  // Drawn even when healed or impossible, so that one plan's decisions do not shift another's.
  const double drawn = std::uniform_real_distribution<double>(0, 1)(random_);
  return !healed_ && drawn < probability;
}

bool SimulatedFaults::refusesDial() {
  MutexLock lock(mutex_);
  return happens(plan_.refuseDial);
}

SimulatedFaults::Fate SimulatedFaults::ofSend(int n) {
  MutexLock lock(mutex_);
  const bool fails = happens(plan_.breakAtSend);
  const bool loses = happens(plan_.loseAtSend);
  const bool delays = happens(plan_.delaySend);
  if (fails || (!healed_ && plan_.breakAfter > 0 && n > plan_.breakAfter)) {
    return Fate::fail;
  }
  return loses ? Fate::lose : delays ? Fate::delay : Fate::pass;
}

bool SimulatedFaults::damages() {
  MutexLock lock(mutex_);
  return happens(plan_.damageSend);
}

std::chrono::microseconds SimulatedFaults::delay() {
  MutexLock lock(mutex_);
  return std::chrono::microseconds(
      std::uniform_int_distribution<int64_t>(0, plan_.maxDelay.count())(random_));
}

void SimulatedFaults::heal() {
  MutexLock lock(mutex_);
  healed_ = true;
}

// ---- links --------------------------------------------------------------------------------------

/// Decides the fate of every send. Thread-safe.
class SimulatedFaultyLink final : public Link,
                                  public std::enable_shared_from_this<SimulatedFaultyLink> {
 public:
  SimulatedFaultyLink(
      std::shared_ptr<Link> inner, std::shared_ptr<SimulatedFaults> faults, Timer& timer)
      : inner_(std::move(inner)), faults_(std::move(faults)), timer_(timer) {}
  ~SimulatedFaultyLink() override {
    close();
  }

  void send(OutgoingFrame frame, Sent sent) override EXCLUDES(mutex_);
  void receive(Received received) override {
    inner_->receive(std::move(received));
  }
  void close() override EXCLUDES(mutex_);

 private:
  struct Held {
    OutgoingFrame frame;
    Sent sent;
  };

  void releaseHeld() EXCLUDES(mutex_);

  const std::shared_ptr<Link> inner_;
  const std::shared_ptr<SimulatedFaults> faults_;
  Timer& timer_;
  Mutex mutex_{LockRank::testOuter};
  int sends_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
  bool holding_ GUARDED_BY(mutex_) = false; // later sends queue up behind a delayed one
  std::deque<Held> held_ GUARDED_BY(mutex_);
};

void SimulatedFaultyLink::send(OutgoingFrame frame, Sent sent) {
  if (frame.head.size() >= FrameHeader::kSize &&
      frame.head[0] >= static_cast<char>(FrameKind::request) && faults_->damages()) {
    frame.head[0] = 99;
  }
  SimulatedFaults::Fate fate;
  bool startTimer = false;
  {
    MutexLock lock(mutex_);
    fate = closed_ ? SimulatedFaults::Fate::pass : faults_->ofSend(++sends_);
    const bool breaks = fate == SimulatedFaults::Fate::fail || fate == SimulatedFaults::Fate::lose;
    if (!closed_ && !breaks && (holding_ || fate == SimulatedFaults::Fate::delay)) {
      startTimer = !std::exchange(holding_, true);
      held_.push_back({std::move(frame), std::move(sent)});
      fate = SimulatedFaults::Fate::delay;
    }
  }
  switch (fate) {
    case SimulatedFaults::Fate::pass:
      inner_->send(std::move(frame), std::move(sent));
      break;
    case SimulatedFaults::Fate::fail:
      close();
      sent(Error(ErrorCode::linkBroken, "the fault plan broke the link"));
      break;
    case SimulatedFaults::Fate::lose:
      close();
      sent(Error());
      break;
    case SimulatedFaults::Fate::delay:
      if (startTimer) {
        timer_.after(faults_->delay(), [weak = weak_from_this()] {
          if (const auto self = weak.lock()) {
            self->releaseHeld();
          }
        });
      }
      break;
  }
}

void SimulatedFaultyLink::releaseHeld() {
  for (;;) {
    Held next;
    {
      MutexLock lock(mutex_);
      if (held_.empty()) {
        holding_ = false;
        return;
      }
      next = std::move(held_.front());
      held_.pop_front();
    }
    inner_->send(std::move(next.frame), std::move(next.sent));
  }
}

void SimulatedFaultyLink::close() {
  std::deque<Held> held;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    held.swap(held_);
  }
  inner_->close();
  for (const Held& item : held) {
    item.sent(Error(ErrorCode::linkBroken, "the link was closed before the delayed frame went"));
  }
}

// ---- the context --------------------------------------------------------------------------------

struct SimulatedFaultyContext::Shared {
  Shared(Timer& t, const SimulatedFaultPlan& plan)
      : timer(t), faults(std::make_shared<SimulatedFaults>(plan)) {}

  std::shared_ptr<Link> wrap(std::shared_ptr<Link> inner) EXCLUDES(mutex) {
    auto link = std::make_shared<SimulatedFaultyLink>(std::move(inner), faults, timer);
    MutexLock lock(mutex);
    std::erase_if(links, [](const auto& weak) { return weak.expired(); });
    links.push_back(link);
    return link;
  }

  Timer& timer;
  const std::shared_ptr<SimulatedFaults> faults;
  Mutex mutex{LockRank::test};
  std::vector<std::weak_ptr<SimulatedFaultyLink>> links GUARDED_BY(mutex);
};

SimulatedFaultyContext::SimulatedFaultyContext(
    LinkContext& inner, Timer& timer, const SimulatedFaultPlan& plan)
    : inner_(inner), shared_(std::make_shared<Shared>(timer, plan)) {}

std::string SimulatedFaultyContext::listen(Accepted accepted) {
  return inner_.listen(
      [shared = shared_, accepted = std::move(accepted)](std::shared_ptr<Link> link) {
        accepted(shared->wrap(std::move(link)));
      });
}

std::shared_ptr<Link> SimulatedFaultyContext::dial(const WorkerRecord& peer) {
  auto link = shared_->wrap(inner_.dial(peer));
  if (shared_->faults->refusesDial()) {
    link->close();
  }
  return link;
}

std::vector<char> SimulatedFaultyContext::offer() const {
  return inner_.offer();
}

LinkDescription SimulatedFaultyContext::describe(const std::vector<char>& peersOffer) const {
  return inner_.describe(peersOffer);
}

void SimulatedFaultyContext::join() {
  std::vector<std::weak_ptr<SimulatedFaultyLink>> links;
  {
    MutexLock lock(shared_->mutex);
    links.swap(shared_->links);
  }
  for (const auto& weak : links) {
    if (const auto link = weak.lock()) {
      link->close();
    }
  }
  inner_.join();
}

void SimulatedFaultyContext::heal() {
  shared_->faults->heal();
}

} // namespace torchwire
