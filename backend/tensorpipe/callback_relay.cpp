#include "backend/tensorpipe/callback_relay.h"

#include <future>
#include <utility>

#include "backend/base/guarded.h"
#include "backend/base/thread_role.h"

namespace torchwire {

namespace {

// An exception must not reach TensorPipe, which would never run its context again.
void deliver(Task& delivery) {
  const DeliverScope scope;
  guarded("a link's callback", delivery);
  delivery = Task(); // within the scope
}

} // namespace

void CallbackRelay::run(Task delivery) {
  if (!isSending()) {
    deliver(delivery);
    return;
  }
  const auto self =
      shared_from_this(); // the task may be over, and the last of its link's, before post() returns
  ++waiting_;
  loop_->post([self, delivery = std::move(delivery)]() mutable {
    deliver(delivery);
    --self->waiting_; // after what it may have handed to the loop in turn
  });
}

void CallbackRelay::drain() {
  do {
    std::promise<void> done;
    loop_->post([&done] { done.set_value(); });
    done.get_future().wait();
  } while (waiting_ != 0);
}

} // namespace torchwire
