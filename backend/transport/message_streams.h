// All message streams of one transport context.
#pragma once

#include <condition_variable>
#include <memory>
#include <set>

#include "backend/base/annotations.h"
#include "backend/transport/loop.h"
#include "backend/transport/message_stream.h"

namespace torchwire {

/// Keeps each message stream from open() until its last callback after close(). Thread-safe. Held by
/// shared_ptr.
class MessageStreams : public std::enable_shared_from_this<MessageStreams> {
 public:
  /// One more; closed from the beginning after closeAll().
  std::shared_ptr<MessageStream> open(const std::shared_ptr<Loop>& loop) EXCLUDES(mutex_);
  void closeAll() EXCLUDES(mutex_);
  /// After closeAll(): returns once no callback runs or will run. Not on the loop's thread.
  void awaitEnd() EXCLUDES(mutex_);

 private:
  Mutex mutex_{LockRank::messageStreams};
  std::condition_variable_any ended_;
  std::set<std::shared_ptr<MessageStream>> open_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

} // namespace torchwire
