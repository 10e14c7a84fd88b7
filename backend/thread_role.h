// What the calling thread is doing, as far as it decides what it may do. See docs/threads.md.
#pragma once

namespace torchwire {

enum class ThreadRole : unsigned char { free, sending, delivering };

/// While it lives, the thread sends: it is below a link's send, or in another call down into TensorPipe, which runs
/// on this thread whatever else is due there. Its caller may hold the GIL, or any lock of libtorch's. Not thread-safe.
class SendScope {
 public:
  SendScope();
  ~SendScope();
  SendScope(const SendScope&) = delete;
  SendScope& operator=(const SendScope&) = delete;

 private:
  const ThreadRole outer_;
};

/// While it lives, the thread delivers: it is in a link's callback, a task of a loop or one of the timer's.
class DeliverScope {
 public:
  DeliverScope();
  ~DeliverScope();
  DeliverScope(const DeliverScope&) = delete;
  DeliverScope& operator=(const DeliverScope&) = delete;

 private:
  const ThreadRole outer_;
};

bool isSending();
bool isFree();
void expectFree(const char* action);

} // namespace torchwire
