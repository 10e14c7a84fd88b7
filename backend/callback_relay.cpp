#include "backend/callback_relay.h"

#include <future>
#include <utility>

#include "backend/thread_role.h"

namespace torchwire {

void CallbackRelay::run(Task delivery) {
  if (!isSending()) {
    const DeliverScope scope;
    delivery();
    delivery = Task(); // within the scope
    return;
  }
  const auto self = shared_from_this(); // the task may be over, and the last of its link's, before post() returns
  ++waiting_;
  loop_->post([self, delivery = std::move(delivery)]() mutable {
    delivery();
    delivery = Task();
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
