// A ring that a loop reads.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <cstdint>

#include "backend/transport/loop.h"
#include "backend/transport/loop_watch.h"
#include "backend/transport/ring.h"
#include "test/unit/support/notifier.h"

namespace torchwire {

/// Reads a ring as ShmStream does: while the loop is awake by polling, else when the event wakes it.
class RingPoller final : public Loop::Poller {
 public:
  RingPoller(Loop& loop, RingMemory memory, int event, Notifier& progress)
      : loop_(loop),
        reader_(memory),
        event_(event),
        progress_(progress),
        watch_(loop, event, [this] {
          eventfd_t wakeups = 0;
          eventfd_read(event_, &wakeups);
        }) {
    watch_.want(FdWatch::readable);
    loop_.add(*this);
  }
  ~RingPoller() override {
    loop_.remove(*this);
  }
  RingPoller(const RingPoller&) = delete;
  RingPoller& operator=(const RingPoller&) = delete;

  bool poll() override {
    char bytes[32];
    const size_t got = reader_.read(bytes, sizeof bytes).value_or(0);
    read += got;
    if (got != 0) {
      progress_.notify();
    }
    return got != 0;
  }
  bool armWakeup() override {
    ++arms;
    return reader_.requestWakeup();
  }

  std::atomic<uint64_t> read{0};
  std::atomic<int> arms{0};

 private:
  Loop& loop_;
  RingReader reader_;
  const int event_;
  Notifier& progress_;
  FdWatch watch_;
};

} // namespace torchwire
