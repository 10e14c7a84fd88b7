// libtorch's autograd graph, as a pass sees it.
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/autograd/context/context.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "autograd/pass/local_graph.h"
#include "backend/base/annotations.h"

namespace torchwire {

/// Where a pass starts: the functions behind the roots, and a gradient of ones for each.
struct RootEdges {
  torch::autograd::edge_list edges;
  torch::autograd::variable_list gradients;
};

/// Throws c10::Error, in PyTorch's words, unless all roots are scalars that require grad.
RootEdges rootEdgesOf(const torch::autograd::variable_list& roots);

/// A GraphTask of libtorch's engine: made for one context on this worker, evaluated from its roots and its send
/// functions. Accumulates gradients in the context. Thread-safe as LocalGraph says.
class GraphTask final : public RootGraph {
 public:
  using ContextPtr = torch::distributed::autograd::ContextPtr;

  /// `roots` is empty except on the worker where the pass starts. `self` is for error messages.
  /// Throws std::runtime_error when a pass of another engine runs in the context, and what libtorch throws.
  GraphTask(
      ContextPtr context, const PassId& pass, bool retainGraph, RootEdges roots,
      const torch::distributed::rpc::WorkerInfo& self);
  ~GraphTask() override;

  std::vector<int64_t> sends() const override;
  void evaluateRoots() override;
  void evaluate(int64_t send, const Attach& attach) override;
  void drop(const std::vector<int64_t>& sends) override;
  void leaveOut(const std::vector<int64_t>& sends) override;
  bool busy() const override;
  bool failedElsewhere() const override;
  void handOverGradients() override;
  void stop() override;
  std::optional<std::string> error() override;
  std::string functionBehind(int64_t send) const override;
  void close() override;
  std::vector<RemoteSend> walkRoots(GraphWalk& walk) override;

  /// The pass whose functions this thread evaluates; null if none.
  static const PassId* current();

 private:
  using Node = torch::autograd::Node;
  using Task = torch::autograd::GraphTask;
  // Of std::shared_ptr up to torch 2.12, of c10::intrusive_ptr from 2.13 on.
  using NodePtr = decltype(torch::autograd::Edge::function);
  using SendFunctions =
      decltype(std::declval<const torch::distributed::autograd::DistAutogradContext&>()
                   .sendFunctions());

  void makeTask(bool retainGraph, const RootEdges& roots);
  void handOver(const std::vector<c10::Stream>& streams);
  void run(torch::autograd::NodeTask task, bool count);
  std::vector<torch::autograd::Node*> nodesOf(const std::vector<int64_t>& sends) const;
  std::vector<torch::autograd::NodeTask> removeDead(std::vector<Node*> dead);
  void awaitErrorOfOthers();
  /// `where`: as in "in a hook".
  void noteError(const std::exception_ptr& error, const std::string& where) EXCLUDES(mutex_);
  std::optional<std::string> notedError() EXCLUDES(mutex_);

  const ContextPtr context_;
  const PassId pass_;
  const torch::distributed::rpc::WorkerInfo self_;
  const NodePtr rootNode_;
  SendFunctions sends_; // as they were when the pass came here; read-only after construction
  std::shared_ptr<Task> task_; // read-only after construction
  std::atomic<size_t> waiting_{0}; // send functions without gradients
  std::atomic<bool> closed_{false};
  std::atomic<bool> stopped_{false}; // from then on it fails because of that
  std::atomic<int> running_{0}; // threads in run()

  mutable Mutex mutex_{LockRank::passError};
  std::optional<std::string> error_ GUARDED_BY(mutex_);
};

/// Walks through libtorch's graph to the recv functions. Not thread-safe.
class TorchGraphWalk final : public GraphWalk {
 public:
  explicit TorchGraphWalk(torch::distributed::autograd::ContextPtr context)
      : context_(std::move(context)) {}

  std::vector<RemoteSend> from(const std::vector<int64_t>& sends) override;
  std::vector<RemoteSend> fromNodes(std::vector<torch::autograd::Node*> nodes);

 private:
  const torch::distributed::autograd::ContextPtr context_;
  std::unordered_set<torch::autograd::Node*> seen_;
};

} // namespace torchwire
