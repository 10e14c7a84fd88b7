#include "test/support/accelerator/statistics.h"

#include <pthread.h>

#include <mutex>

namespace torchwire::accelerator {
namespace {

struct Counted {
  std::mutex mutex;
  WaitCounts counts;
};

/// Never destroyed: threads may wait while the process ends.
Counted& counted() {
  static Counted* const all = new Counted;
  return *all;
}

const char* nameOf(Wait wait) {
  switch (wait) {
    case Wait::stream:
      return "stream";
    case Wait::event:
      return "event";
    case Wait::device:
      return "device";
    case Wait::copy:
      return "copy";
    case Wait::item:
      return "item";
    case Wait::fallback:
      return "fallback";
  }
  return "unknown";
}

} // namespace

void countWait(Wait wait) {
  char thread[16] = "";
  pthread_getname_np(pthread_self(), thread, sizeof thread);
  Counted& all = counted();
  std::lock_guard lock(all.mutex);
  ++all.counts[thread][nameOf(wait)];
}

WaitCounts waitCounts() {
  Counted& all = counted();
  std::lock_guard lock(all.mutex);
  return all.counts;
}

void resetWaitCounts() {
  Counted& all = counted();
  std::lock_guard lock(all.mutex);
  all.counts.clear();
}

} // namespace torchwire::accelerator
