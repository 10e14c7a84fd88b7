// How an engine reaches the engines of other workers.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "backend/base/error.h"
#include "backend/base/task.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// The requests between engines that torchwire sends by itself; gradients are sent by recv functions.
enum class PassRequest { discover, resume, endPass };

/// Thread-safe.
class PassNetwork {
 public:
  /// Called exactly once, on any thread, with an error or with the answer's bytes.
  using Answer = std::function<void(const Error&, std::vector<char>)>;

  virtual ~PassNetwork() = default;

  virtual WorkerId self() const = 0;
  /// "worker 'trainer1'"
  virtual std::string describe(WorkerId worker) const = 0;
  /// All other workers of the group.
  virtual std::vector<WorkerId> peers() const = 0;
  /// `limit` 0: as long as any call may take.
  virtual void request(
      WorkerId to, PassRequest kind, std::vector<char> body, std::chrono::milliseconds limit,
      Answer answer) = 0;
  /// Runs the task after `delay`, unless this worker shuts down first; then it is dropped.
  virtual void later(std::chrono::milliseconds delay, Task task) = 0;
  /// Runs the task soon on a thread that may evaluate functions. Never on the calling one.
  virtual void soon(Task task) = 0;
};

} // namespace torchwire
