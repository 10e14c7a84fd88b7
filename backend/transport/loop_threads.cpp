// Loop: its own threads, the keeper and the standby.
#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <future>
#include <system_error>
#include <utility>

#include "backend/base/log.h"
#include "backend/base/resource_limits.h"
#include "backend/transport/loop.h"

namespace torchwire {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long the keeper sleeps at first, so that what is posted quietly need not wake it.
constexpr milliseconds kDoze{5};
// Requests that come closer together are worth a standby that looks at the clock.
constexpr milliseconds kHot{5};
// How often it looks. A task that runs aside for one to two ticks is left behind.
constexpr microseconds kTick{300};
constexpr int kQuietTicks = 20;
// Tasks that usually take longer than this run on the pool when there are several: there they run side by side.
constexpr microseconds kShortAside{100};
// After tasks that took too long none runs aside for a while: where they often do, the ticks would add up.
constexpr double kOftenLong = 0.3; // as share of them all; the third in a row
constexpr milliseconds kPenalty{20};

constexpr int kMemory = 8; // tasks that the usual time is about an average of

struct OwnThread {
  const Loop* loop = nullptr;
  size_t number = 0;
  bool runsAside = false;
};
thread_local OwnThread own;

} // namespace

// ---- beginning and end ----------------------------------------------------------------------------

std::shared_ptr<Loop> Loop::start(const std::string& name) {
  std::shared_ptr<Loop> loop(new Loop(), &Loop::end);
  Loop* const running = loop.get();
  running->name_ = name;
  running->threads_[0] = startThread([running] { running->runThread(0); });
  return loop;
}

void Loop::end(Loop* loop) {
  if (!loop->threads_[0].joinable()) { // it could not be started
    loop->closeHandles();
    delete loop; // NOLINT(cppcoreguidelines-owning-memory): a deleter
    return;
  }
  const bool onOwnThread = own.loop == loop; // a task held the last pointer
  if (onOwnThread) {
    loop->threads_[own.number].detach();
    loop->endedOn_ = own.number;
  }
  loop->stop();
  if (!onOwnThread) {
    loop->join(0);
    loop->join(1);
    loop->closeHandles(); // not before stop() is over, which wakes the keeper
    delete loop; // NOLINT(cppcoreguidelines-owning-memory)
  }
}

void Loop::stop() {
  stopping_.store(true);
  post([] {});
  MutexLock lock(standbyMutex_);
  standbyWakes_.notify_all();
}

// The first thread starts the second, so that whether there is a second is known once the first has ended.
void Loop::join(size_t thread) {
  if (threads_[thread].joinable()) {
    threads_[thread].join();
  }
}

void Loop::runThread(size_t self) {
  pthread_setname_np(pthread_self(), name_.c_str());
  own = {this, self};
  for (bool keeper = self == 0; keeper || standBy(); keeper = false) {
    if (!keeper) {
      takeOver();
    }
    if (keep()) {
      break;
    }
  }
  if (endedOn_ == self) {
    join(1 - self);
    closeHandles();
    delete this; // NOLINT(cppcoreguidelines-owning-memory): see end()
  }
}

// ---- the keeper -----------------------------------------------------------------------------------

/// Runs the loop until that ends (true), or the standby has taken over.
bool Loop::keep() {
  std::optional<Role> role(std::in_place, *this);
  noteAwake();
  while (!stopping_.load()) {
    const bool progress = turn();
    const bool socketsHot = socketGate_.shouldSpin(now_);
    if (!asides_.empty()) {
      lookAtSockets(socketsHot);
      if (!runNextAside(role)) {
        return false;
      }
    } else if (progress || (wouldDrive_ == 0 && (socketsHot || ringGate_.shouldSpin(now_)))) {
      lookAtSockets(socketsHot);
      pauseAfter(progress);
    } else {
      sleepAsKeeper(role);
    }
  }
  while (runPosted()) { // what was posted while the last tasks ran
  }
  handAsidesToPools();
  return true;
}

void Loop::sleepAsKeeper(std::optional<Role>& role) {
  if (!prepareToSleep()) {
    return;
  }
  if (!asides_.empty()) { // which its look at the sockets has brought
    noteAwake();
    return;
  }
  int timeout = uv_backend_timeout(&uv_);
  const bool doze = std::exchange(eventsBefore_, events_) != events_;
  if (doze) {
    const int atMost = kDoze.count();
    timeout = timeout < 0 ? atMost : std::min(timeout, atMost);
  }
  keeperWakes_ = timeout < 0 ? Clock::time_point::max() : Clock::now() + milliseconds(timeout);
  keeperDozes_.store(doze);
  role.reset();
  epoll_event event;
  epoll_wait(keeperSet_, &event, 1, timeout);
  role.emplace(*this);
  keeperDozes_.store(false);
  keeperWakes_ = Clock::time_point::max();
  noteAwake();
  uv_run(&uv_, UV_RUN_NOWAIT);
}

// ---- tasks that run aside -------------------------------------------------------------------------

bool Loop::runAside(Task&& task, ThreadPool& pool) {
  expectOnLoop();
  const Clock::time_point now = Clock::now();
  const bool hot = now - std::exchange(lastAside_, now) < kHot;
  if (!hot || !mayRunAside(now)) {
    return pool.run(std::move(task));
  }
  asides_.push_back({std::move(task), &pool});
  return true;
}

bool Loop::mayRunAside(Clock::time_point now) {
  if (asidesStopped_.load() || driven_.load() || now < noAsideBefore_) {
    return false;
  }
  if (!asides_.empty() && usualAside_ > kShortAside) {
    return false;
  }
  return standbyReady_.load() || startStandby();
}

/// Starts the second thread if there is none. Whether there is one that stands by shows later.
bool Loop::startStandby() {
  if (!std::exchange(standbyStarted_, true)) {
    try {
      MutexLock lock(standbyMutex_); // which the thread takes first
      threads_[1] = std::thread([this] { runThread(1); });
    } catch (const std::system_error& e) {
      log(LogLevel::error, std::string("cannot start a second thread for a loop: ") + e.what());
    }
  }
  return false;
}

/// Whether this thread is the keeper still.
bool Loop::runNextAside(std::optional<Role>& role) {
  Aside next = std::move(asides_.front());
  asides_.pop_front();
  ++asidesRunning_;
  role.reset();

  const uint64_t turn = aside_.fetch_add(1) + 1;
  if (!ticking_.load()) {
    MutexLock lock(standbyMutex_);
    ticking_.store(true);
    standbyWakes_.notify_all();
  }
  const Clock::time_point begun = Clock::now();
  own.runsAside = true;
  // The pool's if as many run as may, or if the standby may have left.
  if (stopping_.load() || !next.pool->runHere(next.task)) {
    runOnPool(std::move(next));
  }
  own.runsAside = false;
  const Clock::duration taken = Clock::now() - begun;

  asideEnded();
  uint64_t expected = turn;
  if (!aside_.compare_exchange_strong(expected, turn + 1)) {
    return false;
  }
  role.emplace(*this);
  noteAwake();
  usualAside_ += (taken - usualAside_) / kMemory;
  noteAside(taken > kTick); // then the standby was about to take over
  return true;
}

void Loop::asideEnded() {
  --asidesRunning_;
  if (asidesStopped_.load()) {
    MutexLock lock(standbyMutex_);
    standbyWakes_.notify_all();
  }
}

void Loop::stopAside() {
  asidesStopped_.store(true);
  std::promise<void> handedOn; // what is queued
  post([&] {
    handAsidesToPools();
    handedOn.set_value();
  });
  handedOn.get_future().wait();
  const int self = own.loop == this && own.runsAside ? 1 : 0;
  MutexLock lock(standbyMutex_);
  standbyWakes_.wait(lock, [&] { return asidesRunning_.load() <= self; });
}

void Loop::runOnPool(Aside aside) {
  if (!aside.pool->run(std::move(aside.task))) {
    log(LogLevel::warning, "a request was dropped: this worker shuts down or cannot start threads");
  }
}

/// Whether a task aside took long. Once may be the scheduler's doing.
void Loop::noteAside(bool tookLong) {
  longAsides_ += ((tookLong ? 1.0 : 0.0) - longAsides_) / kMemory;
  if (tookLong && longAsides_ > kOftenLong) {
    noAsideBefore_ = Clock::now() + kPenalty;
  }
}

/// In the place of a keeper that is held up.
void Loop::takeOver() {
  const Role role(*this);
  noteAside(true);
  handAsidesToPools();
}

void Loop::handAsidesToPools() {
  for (Aside& aside : asides_) {
    runOnPool(std::move(aside));
  }
  asides_.clear();
}

// ---- the standby ----------------------------------------------------------------------------------

/// Returns true when this thread has become the keeper, false when the loop ends.
bool Loop::standBy() {
  MutexLock lock(standbyMutex_);
  standbyReady_.store(true);
  uint64_t seen = aside_.load();
  int quiet = 0;
  // At the end, too, somebody has to run what is posted if the keeper is held up.
  while (!stopping_.load() || aside_.load() % 2 == 1) {
    if (!ticking_.load()) {
      standbyWakes_.wait(lock, [this] { return ticking_.load() || stopping_.load(); });
    }
    standbyWakes_.wait_for(lock, kTick, [this] { return stopping_.load(); });
    uint64_t current = aside_.load();
    const bool heldUp = (current == seen || stopping_.load()) && current % 2 == 1;
    if (heldUp && aside_.compare_exchange_strong(current, current + 1)) {
      standbyReady_.store(false);
      return true;
    }
    quiet = current == seen ? quiet + 1 : 0;
    seen = current;
    if (quiet == kQuietTicks) {
      quiet = 0;
      ticking_.store(false);
      if (aside_.load() != seen) { // who runs a task looks at ticking_ after it has said so
        ticking_.store(true);
      }
    }
  }
  return false;
}

} // namespace torchwire
