#include "backend/serve/signals.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "backend/base/fork.h"
#include "backend/base/interruption.h"
#include "backend/base/thread_pool.h"
#include "backend/serve/answer_scope.h"
#include "backend/serve/private_members.h"

namespace torchwire {
namespace {

namespace py = pybind11;

pthread_t mainThread{};

using SteadyClock = std::chrono::steady_clock;

struct Raised {
  py::error_already_set error;
  SteadyClock::time_point time;
};
thread_local std::optional<Raised> pending;

// Each takes the GIL, and what waits may ask every millisecond.
constexpr std::chrono::milliseconds kPause{25};
// How long a thread still waits once a handler has raised: for the store, to tell other workers.
constexpr std::chrono::milliseconds kLastPatience{500};

bool isCompletedSoon(c10::ivalue::Future& future) {
  std::unique_lock<std::mutex> lock(future.*pointerTo(FutureMutex()));
  return (future.*pointerTo(FutureFinished())).wait_for(lock, kInterruptionInterval, [&] {
    return future.completed();
  });
}

} // namespace

void noteMainThread() {
  const py::object main = py::module_::import("threading").attr("main_thread")();
  mainThread = static_cast<pthread_t>(main.attr("ident").cast<unsigned long>());
}

bool handlesSignals() {
  return pthread_equal(pthread_self(), mainThread) != 0;
}

bool runSignalHandlers() {
  const py::gil_scoped_acquire gil;
  const uint64_t generation = forkGeneration();
  const bool raised = !pending && PyErr_CheckSignals() != 0;
  if (raised) {
    pending.emplace(Raised{{}, SteadyClock::now()});
  }
  if (forkGeneration() != generation) {
    throw ForkedMeanwhile();
  }
  return raised;
}

bool isOfHandler(const py::error_already_set& raised) {
  if (!handlesSignals()) {
    return false;
  }
  if (raised.trace()) { // which the exception itself may not have yet
    PyException_SetTraceback(raised.value().ptr(), raised.trace().ptr());
  }
  try {
    return py::module_::import("torchwire.interrupts")
        .attr("is_interrupt")(raised.value())
        .cast<bool>();
  } catch (const py::error_already_set& e) { // of a handler that has run meanwhile
    raiseLater(e);
    return false;
  }
}

void raiseLater(const py::error_already_set& raised) {
  if (handlesSignals() && !pending) {
    pending.emplace(Raised{raised, SteadyClock::now()});
  }
}

void throwInterruption(const py::error_already_set& raised) {
  if (!AnswerScope::current()) {
    throw raised;
  }
  raiseLater(raised);
  throw std::runtime_error("the program was interrupted while it read this result");
}

void checkSignals() {
  thread_local SteadyClock::time_point checked;
  if (!handlesSignals()) {
    return;
  }
  const auto now = SteadyClock::now();
  if (pending && now - pending->time >= kLastPatience) {
    throw Interrupted();
  }
  if (now - checked < kPause) {
    return;
  }
  checked = now;
  if (runSignalHandlers()) {
    throw Interrupted();
  }
}

void awaitFuture(c10::ivalue::Future& future) {
  const ThreadPool::BlockingScope blocking;
  while (handlesSignals() && !isCompletedSoon(future)) {
    checkSignals();
  }
  future.wait();
}

void raisePendingSignal() {
  if (pending) {
    const py::error_already_set error = std::exchange(pending, std::nullopt)->error;
    throw error;
  }
}

} // namespace torchwire
