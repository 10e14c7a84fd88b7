// What the books of a simulated worker need of it: requests to others.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "backend/base/error.h"
#include "backend/base/task.h"
#include "test/simulation/event_queue.h"
#include "test/simulation/message.h"
#include "test/simulation/random.h"

namespace torchwire::simulation {

/// Not thread-safe.
class Sender {
 public:
  using Done = std::function<void(const Error&)>;
  struct Terms {
    std::chrono::milliseconds timeout{60000};
    bool sure = true; // nothing in the handler takes longer than that
  };

  virtual ~Sender() = default;

  /// Makes a request; returns its number in the oracle's books. `done` is called once.
  virtual uint64_t request(WorkerId to, Message message, Terms terms, Done done) = 0;
  /// Makes one that is repeated until it is answered, or its callee is dead or has left.
  virtual void keepBooks(WorkerId to, Message message, std::function<void()> done) = 0;
  /// Runs the task after a while, unless the process has ended by then.
  virtual void later(Duration delay, Task task) = 0;
  virtual bool knows(WorkerId worker) const = 0;
  /// All others that it knows.
  virtual std::vector<WorkerId> peers() const = 0;
  virtual Random& random() = 0;
};

} // namespace torchwire::simulation
