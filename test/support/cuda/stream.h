// A stream: operations that run in order, each some time later, on a thread of the stream's own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "test/support/cuda/cuda_api.h"

namespace torchwire::cuda_stand_in {

/// The thread starts with the first operation, and ends once the stream is destroyed and has run all it had. At the end
/// of the process it just stops, with what it had still to do. Thread-safe.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int device, unsigned flags, int priority, uint64_t id);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// A moment of a stream: it has come when `ticket` operations have run.
  struct Moment {
    std::shared_ptr<Stream> stream;
    uint64_t ticket;

    void await() const;
  };

  int device() const {
    return device_;
  }
  unsigned flags() const {
    return flags_;
  }
  int priority() const {
    return priority_;
  }
  uint64_t id() const {
    return id_;
  }

  /// The operation runs after all that were enqueued before it, and after those moments of other streams.
  void enqueue(std::function<void()> operation, std::vector<Moment> after = {});
  /// That at which all that was enqueued so far has run.
  Moment now();
  bool isIdle();
  /// Nothing is enqueued from now on.
  void destroy();

 private:
  struct Operation {
    std::function<void()> run;
    std::vector<Moment> after;
  };

  void await(uint64_t ticket);
  void run();
  bool next(Operation& operation);
  void sleep();

  const int device_;
  const unsigned flags_;
  const int priority_;
  const uint64_t id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> operations_;
  std::minstd_rand random_; // of the thread
  uint64_t issued_ = 0;
  uint64_t completed_ = 0;
  bool hasThread_ = false;
  bool isDestroyed_ = false;
};

} // namespace torchwire::cuda_stand_in
