#include "autograd/graph_task.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/distributed/autograd/functions/sendrpc_backward.h>

#include <chrono>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

#include "autograd/private_members.h"
#include "autograd/python_errors.h"
#include "backend/base/lock_rank.h"
#include "cuda/mutation.h"
#include "cuda/streams.h"

namespace torchwire {
namespace {

namespace dist_autograd = torch::distributed::autograd;
using dist_autograd::DistEngine;
using dist_autograd::RecvRpcBackward;
using torch::autograd::InputBuffer;
using torch::autograd::Node;
using torch::autograd::NodeTask;

thread_local const PassId* currentPass = nullptr;

// Far more than a thread needs to note an error, unless others take its core.
constexpr std::chrono::milliseconds kAwaitError{50};

// The autograd functions that this thread is in, the innermost last, for the message if one fails. libtorch does not
// pass it on, but announces every function to RecordFunction's callbacks.
thread_local std::vector<std::string> currentFunctions;

std::unique_ptr<at::ObserverContext> enterFunction(const at::RecordFunction& function) {
  currentFunctions.emplace_back(function.name());
  return nullptr;
}

void leaveFunction(const at::RecordFunction&, at::ObserverContext*) {
  if (std::uncaught_exceptions() == 0 &&
      !currentFunctions.empty()) { // else it is the one that failed
    currentFunctions.pop_back();
  }
}

/// While it lives, what takes a copy of this thread's state (as a GraphTask does when it is made) takes the two
/// callbacks above with it.
class FunctionObserver {
 public:
  FunctionObserver()
      : handle_(
            at::addThreadLocalCallback(
                at::RecordFunctionCallback(&enterFunction, &leaveFunction)
                    .scopes({at::RecordScope::BACKWARD_FUNCTION}))) {}
  ~FunctionObserver() {
    at::removeCallback(handle_);
  }
  FunctionObserver(const FunctionObserver&) = delete;
  FunctionObserver& operator=(const FunctionObserver&) = delete;

 private:
  const at::CallbackHandle handle_;
};

/// The set of contexts in which a pass runs, shared with libtorch's engine.
class RunningContexts {
 public:
  static void add(int64_t context) {
    auto& engine = DistEngine::getInstance();
    const ForeignLock rank(LockRank::distEngine);
    const std::lock_guard<std::mutex> lock(engine.*pointerTo(InitializedContextIdsLock()));
    if (!(engine.*pointerTo(InitializedContextIds())).insert(context).second) {
      throw std::runtime_error(
          "a backward pass that is not torchwire's runs in autograd context " +
          std::to_string(context));
    }
  }
  static void remove(int64_t context) {
    auto& engine = DistEngine::getInstance();
    const ForeignLock rank(LockRank::distEngine);
    const std::lock_guard<std::mutex> lock(engine.*pointerTo(InitializedContextIdsLock()));
    (engine.*pointerTo(InitializedContextIds())).erase(context);
  }
};

} // namespace

RootEdges rootEdgesOf(const torch::autograd::variable_list& roots) {
  TORCH_CHECK(!roots.empty(), "No tensors provided for gradient computation.");
  RootEdges result;
  for (const auto& root : roots) {
    TORCH_CHECK(root.requires_grad(), "requires_grad not set on root");
    TORCH_CHECK(root.numel() == 1, root.name(), " is not a scalar, all roots need to be scalar");
    TORCH_CHECK(root.grad_fn(), root.name(), " does not have a valid gradient function.");
    result.edges.push_back(torch::autograd::impl::gradient_edge(root));
    result.gradients.push_back(at::ones_like(root, LEGACY_CONTIGUOUS_MEMORY_FORMAT));
  }
  torch::autograd::validate_outputs(
      result.edges, result.gradients, [](const std::string& text) { return text; });
  return result;
}

// ---- making and ending --------------------------------------------------------------------------

GraphTask::GraphTask(
    ContextPtr context, const PassId& pass, bool retainGraph, RootEdges roots,
    const torch::distributed::rpc::WorkerInfo& self)
    : context_(std::move(context)),
      pass_(pass),
      self_(self),
      rootNode_(
          std::unique_ptr<Node>(
              std::make_unique<torch::autograd::GraphRoot>(roots.edges, roots.gradients))) {
  RunningContexts::add(pass_.context);
  try {
    makeTask(retainGraph, roots);
  } catch (...) {
    close();
    throw;
  }
  waiting_ = sends_.size();
}

GraphTask::~GraphTask() {
  close();
}

void GraphTask::makeTask(bool retainGraph, const RootEdges& roots) {
  auto& engine = DistEngine::getInstance();
  const FunctionObserver observer;
  const ForeignLock libtorchs(LockRank::autogradContext); // taken by each of the calls below
  do { // until both have seen the same send functions: calls of the context may still be going on
    (context_.get()->*pointerTo(ResetGraphTask()))();
    sends_ = context_->sendFunctions();
    torch::autograd::edge_list leaves;
    (engine.*pointerTo(ComputeDependencies()))(
        context_, roots.edges, roots.gradients, rootNode_, leaves, retainGraph);
    task_ = (context_.get()->*pointerTo(RetrieveGraphTask()))();
  } while (task_->outstanding_tasks_.load() != sends_.size());
}

void GraphTask::close() {
  if (closed_.exchange(true)) {
    return;
  }
  {
    const ForeignLock libtorchs(LockRank::autogradContext); // taken by both
    (context_.get()->*pointerTo(ResetGraphTask()))();
    (context_.get()->*pointerTo(ClearOutstandingRpcs()))();
  }
  RunningContexts::remove(pass_.context);
}

// ---- evaluation ---------------------------------------------------------------------------------

std::vector<int64_t> GraphTask::sends() const {
  std::vector<int64_t> ids;
  for (const auto& [id, function] : sends_) {
    ids.push_back(id);
  }
  return ids;
}

void GraphTask::evaluateRoots() {
  run(NodeTask(task_, rootNode_, InputBuffer(0)), /*count=*/true);
}

void GraphTask::evaluate(int64_t send, const Attach& attach) {
  --waiting_;
  try {
    attach();
  } catch (const std::exception&) { // the context is being released
    noteError(std::current_exception(), "before its functions");
    stop();
    return;
  }
  // libtorch has counted the send functions when it made the task.
  run(NodeTask(task_, sends_.at(send), InputBuffer(0)), /*count=*/false);
}

void GraphTask::run(NodeTask task, bool count) {
  const PassId* const outer = std::exchange(currentPass, &pass_);
  const size_t depth = currentFunctions.size();
  std::exception_ptr error;
  ++running_;
  try {
    (DistEngine::getInstance().*pointerTo(EvaluateUntilQueueEmpty()))(std::move(task), count);
    if (task_->future_result_->hasError()) {
      error = task_->future_result_->exception_ptr();
    }
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  if (error) {
    const bool raisedHere = currentFunctions.size() > depth;
    if (!raisedHere) {
      awaitErrorOfOthers();
    }
    noteError(error, raisedHere ? "in autograd function " + currentFunctions.back() : "in a hook");
    stop();
  }
  --running_;
  currentFunctions.resize(depth);
  currentPass = outer;
}

/// An error that no function has raised here is a hook's, or another thread's, which is about to note it with its function.
void GraphTask::awaitErrorOfOthers() {
  const auto until = std::chrono::steady_clock::now() + kAwaitError;
  while (running_ > 1 && !notedError() && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
}

const PassId* GraphTask::current() {
  return currentPass;
}

bool GraphTask::busy() const {
  if (task_->has_error_.load()) { // set a moment before what it was can be seen
    return !stopped_ && !task_->future_result_->completed();
  }
  return task_->outstanding_tasks_.load() > waiting_.load();
}

// Functions on devices run on libtorch's threads, one for each device.
bool GraphTask::failedElsewhere() const {
  return task_->has_error_.load() && !stopped_ && task_->future_result_->completed();
}

// libtorch's context has whoever asks it for gradients wait for CUDA's streams, but not for those of other devices.
void GraphTask::handOverGradients() {
  std::vector<c10::Stream> streams;
  {
    const ForeignLock rank(LockRank::graphTask);
    const std::lock_guard<std::mutex> lock(task_->mutex_);
    streams.assign(task_->leaf_streams.begin(), task_->leaf_streams.end());
  }
  if (streams.empty()) {
    return; // no devices
  }
  try {
    handOver(streams);
  } catch (const c10::Error& e) {
    throw std::runtime_error(e.what_without_backtrace());
  }
}

void GraphTask::handOver(const std::vector<c10::Stream>& streams) {
  TORCHWIRE_SYNCHRONIZE(defaultsBehindPass, cuda::putDefaultsBehind(streams));
  // They lie in memory of those streams, and may be dropped while a default stream has still to read them.
  const ForeignLock rank(LockRank::autogradContext);
  const std::lock_guard<std::mutex> lock(context_.get()->*pointerTo(ContextLock()));
  for (const auto& entry : context_.get()->*pointerTo(ContextGradients())) {
    TORCHWIRE_SYNCHRONIZE(passGradientsLent, cuda::lendToDefault(entry.value()));
  }
}

// The future is taken as libtorch's set_exception takes it. Otherwise the last thread that evaluates would find the task
// complete and run its final callbacks, among them DDP's, as if it had succeeded.
void GraphTask::stop() {
  stopped_ = true;
  task_->has_error_ = true;
  if (!task_->future_completed_.exchange(true)) {
    task_->future_result_->setErrorIfNeeded(
        std::make_exception_ptr(std::runtime_error("the backward pass was ended")));
  }
}

// ---- send functions without gradients -----------------------------------------------------------

void GraphTask::leaveOut(const std::vector<int64_t>& sends) {
  removeDead(nodesOf(sends)); // nothing is ready: no function has got a gradient
  waiting_ -= sends.size();
  task_->outstanding_tasks_ -= sends.size();
}

void GraphTask::drop(const std::vector<int64_t>& sends) {
  auto ready = removeDead(nodesOf(sends));
  waiting_ -= sends.size();
  // One of those that libtorch has counted stays for the empty task at the end, which notices if that was all.
  task_->outstanding_tasks_ -= sends.size() - 1;
  for (NodeTask& task : ready) {
    run(std::move(task), /*count=*/true);
  }
  run(NodeTask(task_, nullptr, InputBuffer(0)), /*count=*/false);
}

std::vector<Node*> GraphTask::nodesOf(const std::vector<int64_t>& sends) const {
  std::vector<Node*> nodes;
  for (const int64_t send : sends) {
    nodes.push_back(sends_.at(send).get());
  }
  return nodes;
}

// Takes the edges of functions that get no gradients out of the counts of what their children wait for. A child that
// waits for nothing else is ready if it has got a gradient, and dead as well if not.
std::vector<NodeTask> GraphTask::removeDead(std::vector<Node*> dead) {
  std::vector<NodeTask> ready;
  const ForeignLock rank(LockRank::graphTask);
  const std::lock_guard<std::mutex> lock(task_->mutex_);
  while (!dead.empty()) {
    Node* const node = dead.back();
    dead.pop_back();
    for (const auto& edge : node->next_edges()) {
      const auto count = task_->dependencies_.find(edge.function.get());
      if (count == task_->dependencies_.end() || --count->second > 0) {
        continue;
      }
      task_->dependencies_.erase(count);
      const auto buffered = task_->not_ready_.find(edge.function.get());
      if (buffered == task_->not_ready_.end()) {
        dead.push_back(edge.function.get());
      } else {
        ready.emplace_back(task_, edge.function, std::move(buffered->second));
        task_->not_ready_.erase(buffered);
      }
    }
  }
  return ready;
}

// ---- errors -------------------------------------------------------------------------------------

void GraphTask::noteError(const std::exception_ptr& error, const std::string& where) {
  const ErrorText text = describeException(error);
  // Begins as PyTorch's message does, on which programs may match.
  std::string described = "Error on Node " + std::to_string(self_.id_) + ": " + text.message +
      "\n(raised in the backward pass on worker '" + self_.name_ + "', " + where + ")";
  if (!text.traceback.empty()) {
    described += "\n" + text.traceback;
  }
  MutexLock lock(mutex_);
  if (!error_) {
    error_ = std::move(described);
  }
}

std::optional<std::string> GraphTask::error() {
  if (failedElsewhere()) {
    noteError(task_->future_result_->exception_ptr(), "in a function or hook of a device");
    stop();
  }
  return notedError();
}

std::optional<std::string> GraphTask::notedError() {
  MutexLock lock(mutex_);
  return error_;
}

std::string GraphTask::functionBehind(int64_t send) const {
  const auto found = sends_.find(send);
  if (found == sends_.end()) {
    return "";
  }
  std::string names;
  for (const auto& edge : found->second->next_edges()) {
    if (edge.function) {
      const std::string name = edge.function->name();
      names += (names.empty() ? "" : ", ") + name.substr(name.rfind(':') + 1); // without namespaces
    }
  }
  return names;
}

// ---- walking ------------------------------------------------------------------------------------

std::vector<RemoteSend> GraphTask::walkRoots(GraphWalk& walk) {
  return static_cast<TorchGraphWalk&>(walk).fromNodes({rootNode_.get()});
}

std::vector<RemoteSend> TorchGraphWalk::from(const std::vector<int64_t>& sends) {
  const ForeignLock libtorchs(LockRank::autogradContext); // taken for each
  std::vector<Node*> nodes;
  for (const int64_t send : sends) {
    nodes.push_back(context_->retrieveSendFunction(send).get()); // the context keeps it
  }
  return fromNodes(std::move(nodes));
}

std::vector<RemoteSend> TorchGraphWalk::fromNodes(std::vector<Node*> nodes) {
  std::vector<RemoteSend> found;
  while (!nodes.empty()) {
    Node* const node = nodes.back();
    nodes.pop_back();
    if (const auto* recv = dynamic_cast<RecvRpcBackward*>(node)) {
      found.push_back(
          {recv->*pointerTo(RecvFromWorker()),
           (recv->*pointerTo(RecvMetadata())).autogradMessageId});
    }
    for (const auto& edge : node->next_edges()) {
      if (edge.function && seen_.insert(edge.function.get()).second) {
        nodes.push_back(edge.function.get());
      }
    }
  }
  return found;
}

} // namespace torchwire
