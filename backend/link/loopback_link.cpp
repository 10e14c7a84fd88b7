#include "backend/link/loopback_link.h"

#include <utility>

namespace torchwire {
namespace {

Error closedError() {
  return Error(ErrorCode::shutDown, "this worker has shut its RPC agent down");
}

} // namespace

void LoopbackLink::send(OutgoingFrame frame, Sent sent) {
  bool closed = false;
  IncomingFrame arriving = loopBack(std::move(frame));
  {
    MutexLock lock(mutex_);
    closed = closed_;
    if (!closed) {
      arrived_.push_back(std::move(arriving));
    }
  }
  sent(closed ? closedError() : Error());
  deliver();
}

void LoopbackLink::receive(Received received) {
  bool closed = false;
  {
    MutexLock lock(mutex_);
    closed = closed_;
    if (!closed) {
      received_ = std::move(received);
    }
  }
  if (closed) {
    received(closedError(), {});
  } else {
    deliver();
  }
}

void LoopbackLink::close() {
  Received pending;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    arrived_.clear();
    pending.swap(received_);
  }
  if (pending) {
    pending(closedError(), {});
  }
}

// One thread at a time, for the order's sake; a callback that asks for the next frame finds it delivering
// and returns, so that the stack does not grow.
void LoopbackLink::deliver() {
  for (;;) {
    Received received;
    IncomingFrame frame;
    {
      MutexLock lock(mutex_);
      if (delivering_ || arrived_.empty() || !received_) {
        return;
      }
      delivering_ = true;
      received.swap(received_);
      frame = std::move(arrived_.front());
      arrived_.pop_front();
    }
    received(Error(), std::move(frame));
    MutexLock lock(mutex_);
    delivering_ = false;
  }
}

} // namespace torchwire
