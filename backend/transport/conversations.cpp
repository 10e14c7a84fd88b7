#include "backend/transport/conversations.h"

#include <utility>

namespace torchwire {

std::shared_ptr<Conversation> Conversations::open(const std::shared_ptr<Loop>& loop) {
  // The conversation is told which one it is once it exists.
  const auto itself = std::make_shared<std::weak_ptr<Conversation>>();
  auto conversation = std::make_shared<Conversation>(loop, [all = shared_from_this(), itself] {
    std::shared_ptr<Conversation> over = itself->lock(); // outlives the lock
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

void Conversations::closeAll() {
  std::set<std::shared_ptr<Conversation>> open;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    open = open_;
  }
  for (const auto& conversation : open) {
    conversation->close();
  }
}

void Conversations::awaitEnd() {
  MutexLock lock(mutex_);
  ended_.wait(lock, [this]() REQUIRES(mutex_) { return open_.empty(); });
}

} // namespace torchwire
