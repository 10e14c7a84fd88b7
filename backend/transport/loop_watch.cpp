#include "backend/transport/loop_watch.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "backend/base/fork.h"
#include "backend/base/guarded.h"

namespace torchwire {
namespace {

template <typename Handle>
void closeHandle(Handle* handle) {
  handle->data = nullptr;
  uv_close(reinterpret_cast<uv_handle_t*>(handle), [](uv_handle_t* closed) {
    delete reinterpret_cast<Handle*>(
        closed); // NOLINT(cppcoreguidelines-owning-memory): libuv gives it back
  });
}

} // namespace

FdWatch::FdWatch(Loop& loop, int fd, Ready ready)
    : loop_(loop),
      fd_(fd),
      handle_(new uv_poll_t()),
      ready_(std::make_shared<const Ready>(std::move(ready))) {
  if (const int failed = uv_poll_init(loop.uv(), handle_, fd); failed != 0) {
    delete handle_;
    throw std::runtime_error(std::string("libuv cannot watch a file: ") + uv_strerror(failed));
  }
  handle_->data = this;
  closeInForkedChild(fd_);
}

FdWatch::~FdWatch() {
  loop_.expectOnLoop();
  keepInForkedChild(fd_);
  closeHandle(handle_);
}

void FdWatch::want(int readiness) {
  loop_.expectOnLoop();
  if (readiness == wanted_) {
    return;
  }
  wanted_ = readiness;
  if (readiness == 0) {
    uv_poll_stop(handle_);
    return;
  }
  uv_poll_start(handle_, readiness, onPoll);
}

void FdWatch::onPoll(uv_poll_t* handle, int error, int) {
  auto* watch = static_cast<FdWatch*>(handle->data);
  if (watch == nullptr) {
    return;
  }
  if (error != 0) {
    // libuv stops watching a socket that has an error. There may be bytes before it, and whoever reads
    // those waits to be told that there is more.
    uv_poll_start(handle, watch->wanted_, onPoll);
  }
  const auto ready = watch->ready_; // the watch may go while this runs
  guarded("a socket's callback", *ready);
}

LoopTimer::LoopTimer(Loop& loop) : loop_(loop), handle_(new uv_timer_t()) {
  uv_timer_init(loop.uv(), handle_);
  handle_->data = this;
}

LoopTimer::~LoopTimer() {
  loop_.expectOnLoop();
  closeHandle(handle_);
}

void LoopTimer::start(std::chrono::milliseconds after, std::function<void()> due) {
  loop_.expectOnLoop();
  due_ = std::move(due);
  uv_update_time(handle_->loop); // the loop's clock may be as old as its last sleep
  uv_timer_start(
      handle_,
      [](uv_timer_t* handle) {
        if (auto* timer = static_cast<LoopTimer*>(handle->data)) {
          const std::function<void()> due = std::exchange(timer->due_, nullptr);
          guarded("a timer's callback", due);
        }
      },
      static_cast<uint64_t>(after.count()), 0);
}

void LoopTimer::stop() {
  loop_.expectOnLoop();
  uv_timer_stop(handle_);
  due_ = nullptr;
}

} // namespace torchwire
