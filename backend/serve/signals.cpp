#include "backend/serve/signals.h"

#include <pthread.h>

#include <optional>
#include <utility>

namespace torchwire {
namespace {

namespace py = pybind11;

pthread_t mainThread{};

thread_local std::optional<py::error_already_set> pending;

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
  if (pending || PyErr_CheckSignals() == 0) {
    return false;
  }
  pending.emplace();
  return true;
}

void raisePendingSignal() {
  if (pending) {
    const py::error_already_set error = *std::exchange(pending, std::nullopt);
    throw error;
  }
}

} // namespace torchwire
