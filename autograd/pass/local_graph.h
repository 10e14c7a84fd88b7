// What a pass needs of the autograd graph on its own worker. libtorch's graph is behind graph_task.h; the
// tests of the algorithms have graphs of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/pass/pass_messages.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// A recv function, by what is at its other end: a send function on a worker.
struct RemoteSend {
  WorkerId worker = 0;
  int64_t send = 0;
};

/// A walk over the part of a context's graph that is on this worker, from what a pass reaches towards the
/// leaves. It remembers where it has been. Not thread-safe.
class GraphWalk {
 public:
  virtual ~GraphWalk() = default;

  /// Walks on from these send functions, and returns the recv functions that it came to for the first time.
  /// Throws std::runtime_error when the context has no such send function.
  virtual std::vector<RemoteSend> from(const std::vector<int64_t>& sends) = 0;
};

/// One evaluation of the graph of one context on this worker. Functions may be evaluated from several threads
/// at a time. Evaluation itself never throws: see error().
class LocalGraph {
 public:
  using Attach = std::function<void()>; // hands the gradients to the send function

  virtual ~LocalGraph() = default;

  /// The send functions of the context when the pass came to this worker: all of them wait for gradients.
  virtual std::vector<int64_t> sends() const = 0;

  /// Evaluates from the roots, or from a send function whose gradients have come, and on until nothing more is
  /// ready on this thread. Thread-safe.
  virtual void evaluateRoots() = 0;
  virtual void evaluate(int64_t send, const Attach& attach) = 0;

  /// These send functions get no gradients in this pass: evaluates what waited for nothing else, and on as above.
  /// Thread-safe.
  virtual void drop(const std::vector<int64_t>& sends) = 0;
  /// The same before anything is evaluated, so that nothing can be ready: evaluates nothing, and may be called under a
  /// lock. Not beside any other call.
  virtual void leaveOut(const std::vector<int64_t>& sends) = 0;

  /// Are functions being evaluated on threads other than those that called evaluate()? Thread-safe.
  virtual bool busy() const = 0;

  /// Nothing has been left to evaluate: has who comes after, on whatever thread, see the gradients. Takes locks of its own.
  /// Throws std::exception if a device has failed.
  virtual void handOverGradients() {}

  /// No function starts any more. Thread-safe.
  virtual void stop() = 0;

  /// Has an evaluation failed on a thread other than those that called evaluate(), and error() has not said so yet?
  /// Thread-safe.
  virtual bool failedElsewhere() const {
    return false;
  }

  /// What an evaluation failed with, in words that say where. Thread-safe; may take the GIL.
  virtual std::optional<std::string> error() = 0;

  /// Which autograd function is behind a send function: "MulBackward0". Thread-safe.
  virtual std::string functionBehind(int64_t send) const = 0;

  /// Gives back what the pass holds in the context: another may start. The last call; once. Evaluations that
  /// still run after stop() do no harm. Thread-safe.
  virtual void close() = 0;
};

/// The graph of the worker where a pass starts.
class RootGraph : public LocalGraph {
 public:
  /// What the roots reach without help.
  virtual std::vector<RemoteSend> walkRoots(GraphWalk& walk) = 0;
};

/// Where the graphs of contexts come from. Thread-safe.
class GraphSource {
 public:
  virtual ~GraphSource() = default;

  virtual bool has(int64_t context) = 0;
  /// Throws std::runtime_error when there is no such context, or a pass runs in it that is not torchwire's.
  virtual std::unique_ptr<LocalGraph> open(const PassId& pass, const PassOptions& options) = 0;
  virtual std::unique_ptr<GraphWalk> walk(int64_t context) = 0;
  /// The workers that this one has exchanged messages of the context with: a pass can go nowhere else from here.
  /// None if there is no such context.
  virtual std::vector<WorkerId> knownWorkers(int64_t context) = 0;
};

} // namespace torchwire
