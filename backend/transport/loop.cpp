#include "backend/transport/loop.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/base/thread_role.h"

namespace torchwire {
namespace {

// Longer than a wake-up costs (some 40 us), shorter than anybody minds a busy core.
constexpr std::chrono::microseconds kMaxSpin{100};
// A look at the sockets is a system call; a look at the rings is not.
constexpr int kRingLooksPerSocketLook = 16;
// Waiting for longer than this gives the core to whoever else wants it. That may be the peer, who cannot
// answer otherwise: the scheduler likes to put two that talk on one core.
constexpr std::chrono::nanoseconds kBeforeYield{500};

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

} // namespace

Loop::Loop() : ringGate_(kMaxSpin), socketGate_(kMaxSpin) {
  // The headers are not the ones that libtorch_cpu's libuv was built with.
  if (uv_loop_size() != sizeof(uv_loop_t) || uv_handle_size(UV_POLL) != sizeof(uv_poll_t) ||
      uv_handle_size(UV_ASYNC) != sizeof(uv_async_t) ||
      uv_handle_size(UV_TIMER) != sizeof(uv_timer_t)) {
    throw std::runtime_error(
        "the libuv inside this torch is not the one that torchwire was built for");
  }
  int failed = uv_loop_init(&uv_);
  if (failed == 0) {
    failed = uv_async_init(&uv_, &wakeUp_, nullptr);
  }
  if (failed != 0) {
    throw std::runtime_error(std::string("libuv cannot start a loop: ") + uv_strerror(failed));
  }
}

std::shared_ptr<Loop> Loop::start(const std::string& name) {
  std::shared_ptr<Loop> loop(new Loop(), &Loop::end);
  Loop* const running = loop.get();
  running->thread_ = std::thread([running] { running->run(); });
  pthread_setname_np(running->thread_.native_handle(), name.c_str());
  return loop;
}

void Loop::end(Loop* loop) {
  if (!loop->thread_.joinable()) { // it could not be started
    loop->closeHandles();
    delete loop; // NOLINT(cppcoreguidelines-owning-memory): a deleter
  } else if (loop->isLoopThread()) { // a task held the last pointer
    loop->thread_.detach();
    loop->stopping_ = loop->ownsItself_ = true;
  } else {
    loop->post([loop] { loop->stopping_ = true; });
    loop->thread_.join();
    delete loop; // NOLINT(cppcoreguidelines-owning-memory)
  }
}

void Loop::post(Task task) {
  {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(task));
  }
  hasPosted_.store(true);
  if (!isLoopThread()) { // it looks for tasks whenever it has been somewhere else
    wake();
  }
}

void Loop::wake() {
  // Whoever falls asleep looks at hasPosted_ after it has set asleep_.
  if (asleep_.load() && asleep_.exchange(false)) {
    uv_async_send(&wakeUp_);
  }
}

void Loop::breakLoopRule() {
  breakRule("something that is bound to a loop was used on another thread than the loop's");
}

void Loop::add(Poller& poller) {
  expectOnLoop();
  pollers_.push_back(&poller);
}

void Loop::remove(Poller& poller) {
  expectOnLoop();
  std::replace(pollers_.begin(), pollers_.end(), &poller, static_cast<Poller*>(nullptr));
}

void Loop::run() {
  const DeliverScope scope; // to the thread's end
  threadId_ = std::this_thread::get_id();
  int looks = 0;
  SpinGate::Clock::time_point busy;
  while (!stopping_) {
    const bool ran = runPosted();
    const bool moved = pollAll();
    const auto now = SpinGate::Clock::now();
    if (moved) {
      ringGate_.noteEvent(now);
    }
    if (std::exchange(socketTraffic_, false)) {
      socketGate_.noteEvent(now);
    }
    const bool socketsHot = socketGate_.shouldSpin(now);
    if (ran || moved || socketsHot || ringGate_.shouldSpin(now)) {
      if (socketsHot || ++looks % kRingLooksPerSocketLook == 0) {
        uv_run(&uv_, UV_RUN_NOWAIT);
      }
      if (ran || moved || socketTraffic_) {
        busy =
            now; // what came has posted something, often the answer: no pause before that is sent
      } else if (now - busy < kBeforeYield) {
        relax();
      } else {
        sched_yield();
      }
    } else {
      sleep();
    }
  }
  while (runPosted()) { // what was posted while the last tasks ran
  }
  closeHandles();
  if (ownsItself_) {
    delete this; // NOLINT(cppcoreguidelines-owning-memory): see end()
  }
}

bool Loop::runPosted() {
  if (!hasPosted_.load(std::memory_order_relaxed) || !hasPosted_.exchange(false)) {
    return false;
  }
  {
    MutexLock lock(mutex_);
    running_.swap(posted_);
  }
  for (Task& task : running_) {
    guarded("a task on a transport's loop", task);
    task = Task(); // what it holds goes now, not when the next tasks come
  }
  running_.clear();
  return true;
}

bool Loop::pollAll() {
  bool moved = false;
  for (size_t i = 0; i < pollers_.size(); ++i) { // by index: polling may add pollers
    if (pollers_[i] != nullptr) {
      guarded("a look at a ring", [&] { moved = pollers_[i]->poll() || moved; });
    }
  }
  return moved;
}

bool Loop::armWakeups() {
  std::erase(pollers_, nullptr);
  bool quiet = true;
  for (Poller* poller : pollers_) {
    quiet = poller->armWakeup() && quiet;
  }
  return quiet;
}

void Loop::sleep() {
  asleep_.store(true);
  if (!hasPosted_.load() && armWakeups()) {
    uv_run(&uv_, UV_RUN_ONCE);
  }
  asleep_.store(false);
}

void Loop::closeHandles() {
  uv_walk(
      &uv_,
      [](uv_handle_t* handle, void*) {
        if (uv_is_closing(handle) == 0) {
          uv_close(handle, nullptr);
        }
      },
      nullptr);
  uv_run(&uv_, UV_RUN_DEFAULT);
  if (uv_loop_close(&uv_) != 0) {
    log(LogLevel::error, "a transport loop ended with handles open");
  }
}

} // namespace torchwire
