#include "backend/transport/message_streams.h"

#include <utility>

namespace torchwire {

std::shared_ptr<MessageStream> MessageStreams::open(const std::shared_ptr<Loop>& loop) {
  // The stream is told which one it is once it exists.
  const auto itself = std::make_shared<std::weak_ptr<MessageStream>>();
  auto stream = std::make_shared<MessageStream>(loop, [all = shared_from_this(), itself] {
    std::shared_ptr<MessageStream> over = itself->lock(); // outlives the lock
    MutexLock lock(all->mutex_);
    all->open_.erase(over);
    all->ended_.notify_all();
  });
  *itself = stream;
  bool tooLate = false;
  {
    MutexLock lock(mutex_);
    open_.insert(stream);
    tooLate = closed_;
  }
  if (tooLate) {
    stream->close();
  }
  return stream;
}

void MessageStreams::closeAll() {
  std::set<std::shared_ptr<MessageStream>> open;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    open = open_;
  }
  for (const auto& stream : open) {
    stream->close();
  }
}

void MessageStreams::awaitEnd() {
  MutexLock lock(mutex_);
  ended_.wait(lock, [this]() REQUIRES(mutex_) { return open_.empty(); });
}

} // namespace torchwire
