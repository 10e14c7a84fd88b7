#include "plugin/thread_exit.h"

#include <Python.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "backend/base/library_slots.h"

namespace torchwire {

#if PY_VERSION_HEX < 0x030E0000

namespace {

std::atomic<bool> stops{false};

bool interpreterEnds() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// What Python calls in place of pthread_exit(). The thread has not got the GIL, and holds nothing that the end of the
/// process waits for.
[[noreturn]] void exitOrStop(void* result) {
  while (stops && interpreterEnds()) {
    ::pause();
  }
  ::pthread_exit(result);
}

} // namespace

void findWherePythonEndsThreads() {
  [[maybe_unused]] static const auto replaced = replaceSlots(
      {{"pthread_exit", reinterpret_cast<const void*>(&::pthread_exit),
        reinterpret_cast<void*>(&exitOrStop)}},
      [](const LoadedImage& image) {
        return image.contains(reinterpret_cast<const void*>(&Py_FinalizeEx));
      });
}

void stopThreadsWherePythonEnds() {
  stops = true;
}

#else

void findWherePythonEndsThreads() {}
void stopThreadsWherePythonEnds() {}

#endif

} // namespace torchwire
