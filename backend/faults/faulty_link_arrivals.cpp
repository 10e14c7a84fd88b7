// FaultyLink: the way in.
#include <utility>

#include "backend/faults/alarm.h"
#include "backend/faults/fault_errors.h"
#include "backend/faults/faulty_frame.h"
#include "backend/faults/faulty_link.h"
#include "backend/wire/handshake.h"

namespace torchwire::faults {

void FaultyLink::receive(Received received) {
  const auto alive = weak_from_this().lock(); // a callback may hold the last reference
  {
    MutexLock lock(mutex_);
    received_ = std::move(received);
  }
  deliver();
  pump();
}

// Keeps a receive of the inner link pending. One that is answered at once asks again from here, so that the
// stack does not grow.
void FaultyLink::pump() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (pumping_ || innerPending_ || closed_ || end_) {
        return;
      }
      pumping_ = true;
      innerPending_ = true;
    }
    inner_->receive([weak = weak_from_this()](const Error& error, IncomingFrame frame) {
      if (const auto self = weak.lock()) {
        self->onArrival(error, std::move(frame));
      }
    });
    MutexLock lock(mutex_);
    pumping_ = false;
  }
}

void FaultyLink::onArrival(const Error& error, IncomingFrame frame) {
  if (error) {
    {
      MutexLock lock(mutex_);
      innerPending_ = false;
      if (!end_) {
        end_ = error;
      }
    }
    deliver();
    return;
  }
  const auto header = headerIn(frame.head);
  if (header && header->kind == FrameKind::request) {
    onRequest(std::move(frame), *header);
  } else {
    if (header && header->kind == FrameKind::hello) {
      learnPeer(frame);
    }
    handOn(std::move(frame), header ? header->kind : FrameKind{});
  }
  {
    MutexLock lock(mutex_); // not before: the next frame must not overtake this one
    innerPending_ = false;
  }
  pump();
}

void FaultyLink::learnPeer(const IncomingFrame& hello) {
  std::string name;
  try {
    name = Hello::decode(hello).self.name;
  } catch (const FormatError&) { // the link manager will say so
    return;
  }
  MutexLock lock(mutex_);
  if (peer_.empty()) {
    peer_ = std::move(name);
  }
}

void FaultyLink::onRequest(IncomingFrame frame, const FrameHeader& header) {
  FaultPoint at;
  at.phase = Phase::inFlight;
  at.from = peer();
  at.to = injector_->self();
  at.message = header.messageType;
  at.callId = header.callId;
  at.content = injector_->readsContent() ? contentOf(frame) : 0;
  at.bytes = frame.bytes();
  const auto fault = injector_->decide(at);
  if (fault && fault->action == Action::drop) {
    return;
  }
  injector_->requests().add(at.from, at.callId, {at.message, at.content});
  if (fault) {
    injectOnArrival(std::move(frame), at, *fault);
  } else {
    handOn(std::move(frame), FrameKind::request);
  }
}

void FaultyLink::injectOnArrival(IncomingFrame frame, const FaultPoint& at, const Entry& fault) {
  switch (fault.action) {
    case Action::fail: {
      // Served all the same; by then the caller drops the true response as late.
      Item failure{exceptionFrame(at.callId, failureText(fault)), [](const Error&) {}};
      failure.kind = FrameKind::response;
      failure.at = at;
      failure.at->phase = Phase::response;
      goOut(std::move(failure));
      handOn(std::move(frame), FrameKind::request);
      break;
    }
    case Action::delay:
    case Action::reorder:
      waitArrival(std::move(frame), fault);
      break;
    case Action::duplicate: {
      injector_->requests().add(at.from, at.callId, {at.message, at.content});
      IncomingFrame second = copyOf(frame);
      handOn(std::move(frame), FrameKind::request);
      handOn(std::move(second), FrameKind::request);
      break;
    }
    case Action::corrupt:
      corrupt(frame, fault.byte);
      handOn(std::move(frame), FrameKind::request);
      break;
    case Action::close: // before anyone can answer it
      breakLink(fault, std::move(frame));
      break;
    default: // none that a plan can have here, see isPossible()
      handOn(std::move(frame), FrameKind::request);
  }
}

void FaultyLink::waitArrival(IncomingFrame frame, const Entry& fault) {
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    if (closed_) {
      return;
    }
    id = next_++;
    waitingArrivals_.emplace(id, WaitingArrival{std::move(frame), fault.action == Action::reorder});
  }
  setAlarm(timer_, fault.seconds, [weak = weak_from_this(), id](bool inTime) {
    if (const auto self = weak.lock()) {
      self->endWaitArrival(id, inTime);
    }
  });
}

void FaultyLink::endWaitArrival(uint64_t id, bool inTime) {
  IncomingFrame frame;
  {
    MutexLock lock(mutex_);
    const auto it = waitingArrivals_.find(id);
    if (it == waitingArrivals_.end()) {
      return;
    }
    frame = std::move(it->second.frame);
    waitingArrivals_.erase(it);
  }
  if (inTime) {
    handOn(std::move(frame), FrameKind::request);
  }
}

void FaultyLink::handOn(IncomingFrame frame, FrameKind kind) {
  {
    MutexLock lock(mutex_);
    if (end_) { // lost with the link
      return;
    }
    arrived_.push_back(std::move(frame));
    if (kind == FrameKind::request || kind == FrameKind::response) {
      std::erase_if(waitingArrivals_, [this](auto& entry) REQUIRES(mutex_) {
        if (entry.second.untilNext) {
          arrived_.push_back(std::move(entry.second.frame));
        }
        return entry.second.untilNext;
      });
    }
  }
  deliver();
}

// One thread at a time, for the order's sake; a callback that asks for the next frame finds it delivering
// and returns.
void FaultyLink::deliver() {
  for (;;) {
    Received received;
    IncomingFrame frame;
    Error end;
    {
      MutexLock lock(mutex_);
      if (delivering_ || !received_ || (arrived_.empty() && !end_)) {
        return;
      }
      delivering_ = true;
      received.swap(received_);
      if (arrived_.empty()) {
        end = end_;
      } else {
        frame = std::move(arrived_.front());
        arrived_.pop_front();
      }
    }
    received(end, std::move(frame));
    MutexLock lock(mutex_);
    delivering_ = false;
  }
}

} // namespace torchwire::faults
