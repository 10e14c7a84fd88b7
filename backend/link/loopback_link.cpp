#include "backend/link/loopback_link.h"

#include <utility>

#include "backend/base/thread_role.h"

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
    delivered_.wait(lock, [this]() REQUIRES(mutex_) {
      return deliverer_ == std::thread::id() || deliverer_ == std::this_thread::get_id();
    });
  }
  if (pending) {
    pending(closedError(), {});
  }
}

// Also where the callback throws: else the link would be silent, and close() wait, for ever.
class LoopbackLink::Delivery {
 public:
  explicit Delivery(LoopbackLink& link) : link_(link) {}
  ~Delivery() {
    MutexLock lock(link_.mutex_);
    link_.deliverer_ = {};
    link_.delivered_.notify_all();
  }
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

 private:
  LoopbackLink& link_;
};

// One thread at a time, for the order's sake; a callback that asks for the next frame finds it delivering
// and returns, so that the stack does not grow.
void LoopbackLink::deliver() {
  for (;;) {
    Received received;
    IncomingFrame frame;
    {
      MutexLock lock(mutex_);
      if (deliverer_ != std::thread::id() || arrived_.empty() || !received_) {
        return;
      }
      deliverer_ = std::this_thread::get_id();
      received.swap(received_);
      frame = std::move(arrived_.front());
      arrived_.pop_front();
    }
    const Delivery delivery(*this);
    const DeliverScope scope;
    received(Error(), std::move(frame));
    received = nullptr; // what it keeps may be the last of its kind
  }
}

} // namespace torchwire
