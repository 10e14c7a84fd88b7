#include "backend/transport/message_streams.h"

#include <utility>

namespace torchwire {

std::shared_ptr<MessageStream> MessageStreams::open(const std::shared_ptr<Loop>& loop) {
  // The conversation is told which one it is once it exists.
  const auto itself = std::make_shared<std::weak_ptr<MessageStream>>();
  auto conversation = std::make_shared<MessageStream>(loop, [all = shared_from_this(), itself] {
    std::shared_ptr<MessageStream> over = itself->lock(); // outlives the lock
    MutexLock lock(all->mutex_);
    all->open_.erase(over);
    all->ended_.notify_all();
  });
  *itself = conversation;
  bool tooLate = false;
  {
    MutexLock lock(mutex_);
    open_.insert(conversation);
    tooLate = closed_;
  }
  if (tooLate) {
    conversation->close();
  }
  return conversation;
}

void MessageStreams::closeAll() {
  std::set<std::shared_ptr<MessageStream>> open;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    open = open_;
  }
  for (const auto& conversation : open) {
    conversation->close();
  }
}

void MessageStreams::awaitEnd() {
  MutexLock lock(mutex_);
  ended_.wait(lock, [this]() REQUIRES(mutex_) { return open_.empty(); });
}

} // namespace torchwire
