// FaultyLink: faults in the middle of a tensor.
#include <utility>

#include "backend/faults/alarm.h"
#include "backend/faults/faulty_frame.h"
#include "backend/faults/faulty_link.h"

namespace torchwire::faults {

// Whether it keeps the item.
bool FaultyLink::injectInTensors(Item& item) {
  if (item.midTensorDone || !item.at || tensorBytes(item.frame) == 0) {
    return false;
  }
  item.midTensorDone = true;
  FaultPoint at = *item.at;
  at.phase = Phase::midTensor;
  at.bytes = tensorBytes(item.frame);
  const auto fault = injector_->draw(at);
  if (!fault) {
    return false;
  }
  if (fault->action == Action::corrupt) {
    injector_->inject(*fault);
    corruptTensors(item.frame, fault->byte);
    return false;
  }
  if (toSelf_) {
    stall(std::move(item), *fault);
    return true;
  }
  // Memory that no other frame has: the same tensor may be on its way to several workers.
  auto armed =
      injector_->midTensor()->arm(lastTensorOfItsOwn(item.frame), midTensorInjection(*fault));
  item.sent = [weak = weak_from_this(), armed = std::move(armed),
               sent = std::move(item.sent)](const Error& error) mutable {
    armed.reset();
    const auto self = weak.lock();
    sent(self ? self->causeOf(error) : error);
  };
  return false;
}

// Keeps no link alive: the channel may drop it long after the link has gone.
MidTensor::Injection FaultyLink::midTensorInjection(const Entry& fault) {
  return [weak = weak_from_this(), injector = injector_, fault](MidTensor::GoOn goOn) {
    injector->inject(fault); // only here is it certain that it takes place
    const auto link = weak.lock();
    if (fault.action == Action::drop) {
      if (link) {
        link->noteTorn(fault);
      }
      return;
    }
    if (fault.action == Action::delay && link && !link->isClosed()) {
      setAlarm(link->timer_, fault.seconds, [goOn = std::move(goOn)](bool) { goOn(); });
      return;
    }
    if (fault.action == Action::close && link) {
      link->breakLink(fault);
      return; // the rest fails with the link, and must not overtake its end
    }
    goOn();
  };
}

// An inner link that a fault has closed knows only that.
Error FaultyLink::causeOf(const Error& error) const {
  MutexLock lock(mutex_);
  return error && closed_ && end_ ? end_ : error;
}

// What is behind half a tensor can never pass, so the link breaks when the plan ends that tore it.
void FaultyLink::noteTorn(const Entry& fault) {
  {
    MutexLock lock(mutex_);
    torn_ = fault;
  }
  if (fault.revision != injector_->revision()) { // it has ended already
    planChanged();
  }
}

bool FaultyLink::isClosed() const {
  MutexLock lock(mutex_);
  return closed_;
}

// No channel is between a worker and itself, and half a tensor no use to anyone: the whole frame
// waits, and all behind it.
void FaultyLink::stall(Item item, const Entry& fault) {
  const auto id = keep(std::move(item), Wait::stall);
  if (!id) {
    return;
  }
  midTensorInjection(fault)([weak = weak_from_this(), id = *id] {
    if (const auto self = weak.lock()) {
      self->endStall(id);
    }
  });
}

void FaultyLink::endStall(uint64_t id) {
  Item item;
  {
    MutexLock lock(mutex_);
    const auto it = waiting_.find(id);
    if (it == waiting_.end()) { // the link was broken or closed meanwhile
      return;
    }
    item = std::move(it->second.item);
    waiting_.erase(it);
    stalled_ = false;
  }
  inner_->send(std::move(item.frame), std::move(item.sent));
  --held_;
  openGate();
}

} // namespace torchwire::faults
