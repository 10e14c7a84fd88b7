#include "backend/transport/loop.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend/base/fork.h"
#include "backend/base/guarded.h"
#include "backend/base/lock_rank.h"
#include "backend/base/log.h"

namespace torchwire {
namespace {

// Longer than what lies between two calls where one had to wake somebody (some 100 us): else a pair that began by sleeping
// would go on so. Shorter than anybody minds a busy core.
constexpr std::chrono::microseconds kMaxSpin{200};
// A look at the sockets is a system call; a look at the rings is not.
constexpr int kRingLooksPerSocketLook = 16;
// Waiting for longer than this gives the core to whoever else wants it. That may be the peer, who cannot
// answer otherwise: the scheduler likes to put two that talk on one core.
constexpr std::chrono::nanoseconds kBeforeYield{500};
// Who waits for an answer knows that one will come, and what the sleep would cost.
constexpr std::chrono::microseconds kMaxWaitSpin{200};
// How long a thread drives. What takes longer is worth a wake-up more, and the keeper is better at all else.
constexpr std::chrono::milliseconds kMaxDrive{2};
// How long who would drive waits for the role: a keeper that has nothing to do lets go of it at once.
constexpr std::chrono::microseconds kAwaitRole{20};
// Turns for what has come in the meantime, before the keeper is woken for it.
constexpr int kTurnsBeforeLeaving = 8;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

} // namespace

Loop::Loop()
    : keeperSet_(epoll_create1(EPOLL_CLOEXEC)),
      ringGate_(kMaxSpin),
      socketGate_(kMaxSpin),
      waitGate_(kMaxWaitSpin) {
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
  if (failed == 0) {
    epoll_event readable{.events = EPOLLIN, .data = {}};
    failed =
        keeperSet_ < 0 || epoll_ctl(keeperSet_, EPOLL_CTL_ADD, uv_backend_fd(&uv_), &readable) != 0
        ? uv_translate_sys_error(errno)
        : 0;
  }
  if (failed != 0) {
    if (keeperSet_ >= 0) {
      close(keeperSet_);
    }
    throw std::runtime_error(std::string("libuv cannot start a loop: ") + uv_strerror(failed));
  }
  closeInForkedChild(keeperSet_);
  closeInForkedChild(uv_backend_fd(&uv_));
}

// ---- on any thread --------------------------------------------------------------------------------

void Loop::enqueue(Task task) {
  {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(task));
  }
  hasPosted_.store(true);
}

void Loop::post(Task task) {
  enqueue(std::move(task));
  interrupt();
}

void Loop::postQuietly(Task task) {
  enqueue(std::move(task));
  if (!keeperDozes_.load()) {
    interrupt();
  }
}

void Loop::interrupt() {
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

// ---- with the role --------------------------------------------------------------------------------

void Loop::add(Poller& poller) {
  expectOnLoop();
  pollers_.push_back(&poller);
}

void Loop::remove(Poller& poller) {
  expectOnLoop();
  std::replace(pollers_.begin(), pollers_.end(), &poller, static_cast<Poller*>(nullptr));
}

/// Does what there is to do; false if there was nothing.
bool Loop::turn() {
  const bool ran = runPosted();
  const bool moved = pollAll();
  now_ = Clock::now();
  if (moved) {
    ringGate_.noteEvent(now_);
  }
  if (std::exchange(socketTraffic_, false)) {
    socketGate_.noteEvent(now_);
  }
  events_ += ran || moved ? 1 : 0;
  return ran || moved;
}

void Loop::lookAtSockets(bool hot) {
  if (hot || ++looks_ % kRingLooksPerSocketLook == 0) {
    uv_run(&uv_, UV_RUN_NOWAIT);
  }
}

void Loop::pauseAfter(bool progress) {
  if (progress || socketTraffic_) {
    busy_ = now_; // what came has posted something, often the answer: no pause before that is sent
  } else if (now_ - busy_ < kBeforeYield) {
    relax();
  } else {
    sched_yield();
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

/// Whether whoever has the role may sleep: a socket or a task will wake it.
bool Loop::prepareToSleep() {
  uv_run(&uv_, UV_RUN_NOWAIT); // tells the kernel what to watch, too
  asleep_.store(true);
  if (!hasPosted_.load() && armWakeups()) {
    return true;
  }
  asleep_.store(false);
  return false;
}

bool Loop::armWakeups() {
  std::erase(pollers_, nullptr);
  bool quiet = true;
  for (Poller* poller : pollers_) {
    quiet = poller->armWakeup() && quiet;
  }
  return quiet;
}

void Loop::noteAwake() {
  asleep_.store(false);
  for (Poller* poller : pollers_) {
    if (poller != nullptr) {
      poller->disarmWakeup();
    }
  }
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
  keepInForkedChild(keeperSet_);
  keepInForkedChild(uv_backend_fd(&uv_));
  if (uv_loop_close(&uv_) != 0) {
    log(LogLevel::error, "a transport loop ended with handles open");
  }
  close(keeperSet_);
}

// ---- drivers --------------------------------------------------------------------------------------

void Loop::drive(const std::function<bool()>& isOver) {
  expectUnlocked("driving a loop");
  if (isOver() || isLoopThread() || !isFree()) {
    return;
  }
  std::unique_lock<std::mutex> lock = tryRole();
  if (!lock) {
    return;
  }
  const Role role(*this, std::move(lock));
  watchForKeeper(false);
  noteAwake();
  handAsidesToPools(); // which the keeper could not get at meanwhile
  const Clock::time_point begun = Clock::now();
  const Clock::time_point spinUntil = begun + waitGate_.spin();
  now_ = busy_ = begun;
  while (!isOver() && now_ - begun < kMaxDrive) {
    const bool progress = turn();
    if (isOver()) {
      break;
    }
    if (progress || now_ < spinUntil) {
      lookAtSockets(socketGate_.shouldSpin(now_));
      pauseAfter(progress);
    } else {
      sleepAsDriver(isOver, kMaxDrive - (now_ - begun));
    }
  }
  waitGate_.noteWait(Clock::now() - begun);
  leaveToKeeper();
}

/// The role, unless another driver has it.
std::unique_lock<std::mutex> Loop::tryRole() {
  std::unique_lock<std::mutex> lock(role_, std::try_to_lock);
  if (!lock && !driven_.load()) { // the keeper: it gives it up as soon as it has nothing to do
    ++wouldDrive_;
    const Clock::time_point until = Clock::now() + kAwaitRole;
    while (!lock.try_lock() && Clock::now() < until) {
      sched_yield();
    }
    --wouldDrive_;
  }
  return lock;
}

/// Until something comes or the time is over. Neither is said: whoever drives looks.
void Loop::sleepAsDriver(const std::function<bool()>& isOver, Clock::duration atMost) {
  if (!prepareToSleep()) {
    return;
  }
  if (!isOver()) { // who ends it interrupts only a driver that sleeps
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(atMost).count();
    const int due = uv_backend_timeout(&uv_);
    pollfd set{.fd = uv_backend_fd(&uv_), .events = POLLIN, .revents = 0};
    ::poll(&set, 1, due < 0 ? static_cast<int>(left) : std::min(due, static_cast<int>(left)));
  }
  noteAwake();
  uv_run(&uv_, UV_RUN_NOWAIT);
  now_ = Clock::now();
}

void Loop::leaveToKeeper() {
  bool quiet = prepareToSleep();
  for (int i = 0; i < kTurnsBeforeLeaving && !quiet; ++i) {
    turn();
    quiet = prepareToSleep();
  }
  asleep_.store(true);
  const int due = uv_backend_timeout(&uv_);
  if (!quiet || (due >= 0 && Clock::now() + std::chrono::milliseconds(due) < keeperWakes_)) {
    wake(); // for what is left to do, or for a time that the keeper does not know of
  }
  watchForKeeper(true);
}

/// Whether what comes wakes the keeper.
void Loop::watchForKeeper(bool watch) {
  driven_.store(!watch);
  epoll_event event{.events = watch ? EPOLLIN : 0U, .data = {}};
  epoll_ctl(keeperSet_, EPOLL_CTL_MOD, uv_backend_fd(&uv_), &event);
}

} // namespace torchwire
