// torchwire's own distributed backward: the engine of one worker. See docs/backward.md.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>

namespace torchwire {

/// Drives the backward passes in which this worker takes part. Thread-safe.
class Engine {
 public:
  using Done = std::function<void(std::exception_ptr)>; // null: the pass has succeeded

  virtual ~Engine() = default;

  /// Starts a pass from `roots` (scalars that require grad) with this worker as its root, and calls `done`
  /// once it is over on all workers, perhaps before it returns. Does not throw.
  virtual void start(
      int64_t contextId, const torch::autograd::variable_list& roots, bool retainGraph,
      Done done) = 0;

  /// The same, and waits. Throws std::runtime_error (or what the pass failed with). If a handler of a signal raises
  /// meanwhile, the pass is cancelled and this throws a CallError at once; the caller then calls raisePendingSignal().
  /// Call it without the GIL.
  void backward(int64_t contextId, const torch::autograd::variable_list& roots, bool retainGraph);

  /// Ends the pass that runs in the context, if it does, on all workers; soon.
  virtual void cancel(int64_t contextId) = 0;

  /// Forgets what it knows of a context that has been released here.
  virtual void contextReleased(int64_t contextId) = 0;

  /// How many passes have been started here, with this worker as their root. For debug information, and for
  /// tests that want to know which engine drove a pass.
  virtual uint64_t passesStarted() const = 0;

  /// The pass of this context that runs here just now, in a few words for people; none: nullopt.
  virtual std::optional<std::string> describePass(int64_t contextId) = 0;
};

/// What an RPC agent is that has an engine of its own.
class EngineOwner {
 public:
  virtual ~EngineOwner() = default;
  /// Lives as long as the agent.
  virtual Engine& engine() = 0;
};

} // namespace torchwire
