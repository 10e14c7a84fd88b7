#include "backend/agent/pools.h"

#include <stdexcept>
#include <utility>

#include "backend/base/resource_limits.h"
#include "backend/serve/python_thread.h"

namespace torchwire {
namespace {

// Not num_worker_threads: a hook may start a pass in another context and wait for it, which takes a thread for each level. Only
// those are started that are needed at a time.
constexpr size_t kMaxEvaluations = 256;

// Threads that wait for copies from devices to the host: such of several devices, and of one behind work of different
// lengths, should not wait for each other. Only those are started that are needed at a time.
constexpr size_t kMaxCopies = 64;

} // namespace

Pools::Pools(size_t threads, size_t spares)
    : requests(threads, "torchwire_work", runOnPythonThread, spares),
      control(std::make_shared<ThreadPool>(threads, "torchwire_ctrl", runOnPythonThread)),
      evaluations(kMaxEvaluations, "torchwire_grad", runOnPythonThread),
      completions(threads, "torchwire_done", runOnPythonThread, spares),
      deaths(1, "torchwire_dead"),
      copies(std::make_shared<ThreadPool>(kMaxCopies, "torchwire_copy", runOnPythonThread)) {}

void Pools::start() {
  for (ThreadPool* const pool : {&requests, control.get(), &evaluations, &deaths}) {
    if (!pool->run([] {})) {
      throw std::runtime_error(threadLimits());
    }
  }
}

void Pools::endOn(ThreadPool& pool, Task task) {
  // run() leaves a task that it does not take.
  for (ThreadPool* const each : {&pool, control.get(), &requests, &evaluations}) {
    if (each->run(std::move(task))) {
      return;
    }
  }
  task(); // a call that slipped in while the agent shut down: its future must not stay open
}

void Pools::join() {
  requests.join();
  joinOwn();
  evaluations.join();
  completions.join();
}

void Pools::joinOwn() {
  deaths.join();
  copies->join();
  control->join();
}

} // namespace torchwire
