// A stream: work that runs in order, some time later, on a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "test/support/accelerator/completion.h"
#include "test/support/accelerator/health.h"

namespace torchwire::accelerator {

/// Two kinds of entries go through its queue:
///  - *work* (kernels, copies) runs after a random delay; it is dropped once the device is lost or the process ends;
///  - *marks* (events, waits, frees) run in any case and at once when their turn comes, so that nobody waits for ever,
///    and so that memory is poisoned as early as it may be.
/// The thread starts with the first entry that has to wait for something. Thread-safe.
class WorkStream {
 public:
  WorkStream(int device, int64_t id, Health& health);
  WorkStream(const WorkStream&) = delete;
  WorkStream& operator=(const WorkStream&) = delete;

  int64_t id() const {
    return id_;
  }

  /// What throws costs the device.
  void enqueue(std::function<void()> work);
  /// `mark` may run before this returns: where the stream has nothing to do. It does not throw.
  void mark(std::function<void()> mark);

  /// Complete once everything that was enqueued so far has run.
  std::shared_ptr<Completion> record();
  /// What is enqueued from now on runs after it.
  void waitFor(std::shared_ptr<Completion> completion);

  bool isIdle() const;

  /// Nothing new begins until release().
  void hold();
  void release();

  /// At the end of the process: what is enqueued later is dropped or, if it is a mark, runs at once. In two steps,
  /// because streams wait for each other.
  void stop();
  void join();

  /// How many of all streams have started a thread.
  static size_t threads() noexcept;

 private:
  enum class Kind { work, wait, mark };
  struct Entry {
    Kind kind;
    std::function<void()> run;
  };

  void push(Entry entry); // with the mutex
  bool isIdleLocked() const;
  void loop();
  void delay();
  void runWork(const std::function<void()>& work);

  const int device_;
  const int64_t id_;
  Health& health_;
  std::mt19937_64 random_; // the thread's
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> queue_;
  std::thread thread_;
  bool busy_ = false; // with work, or with waiting
  bool held_ = false;
  bool stopping_ = false;
};

} // namespace torchwire::accelerator
