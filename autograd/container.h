// The autograd contexts of this worker: they are opened by calls, released with those of other workers, and listed.
// See docs/autograd_contexts.md.
#pragma once

#include <torch/csrc/distributed/autograd/context/context.h>
#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/pass/context_registry.h"
#include "backend/serve/dispatcher.h"

namespace torchwire {

/// A context as shown to people.
struct ContextStatus {
  ContextId id;
  WorkerId creator;
  ContextRegistry::Workers known; // with whom this worker has exchanged calls in it
  size_t sendFunctions;
  size_t recvFunctions;
  size_t gradients;
  std::optional<ContextRegistry::Status> registry; // unset for one that no call of ours has opened
  std::optional<std::string> backward; // the pass that runs here
};

/// Drives libtorch's DistAutogradContainer, which holds the contexts: handles the messages that open and release them.
/// Thread-safe. Frees graphs, which may take the GIL: call it without the GIL and without locks, and, but for what says
/// otherwise, not on a loop.
class Container {
 public:
  using JitFuture = torch::distributed::rpc::JitFuture;
  using Message = torch::distributed::rpc::Message;

  /// `agent` must outlive this.
  Container(torch::distributed::rpc::RpcAgent& agent, std::weak_ptr<Engine> engine);

  /// Drops the contexts that workers of an earlier group have left behind: this group's have the same numbers.
  void forgetEarlierGroup();

  /// The ids that this process gives to contexts and to the calls in them go on from a number drawn from `random`, the
  /// first time that this is called.
  static void beginIdsAt(uint64_t random);

  /// A caller's device for each of this worker's.
  using MapBack = std::function<torch::distributed::rpc::DeviceMap(WorkerId caller)>;

  /// Registers the handlers of calls that carry a context, and of releases.
  void serve(Dispatcher& dispatcher, MapBack mapBack);

  /// The context that a message which is about to be sent is part of.
  static std::optional<ContextId> contextOf(const Message& request);
  void ownCallEnded(ContextId id, WorkerId callee) {
    registry_->ownCallEnded(id, callee);
  }
  void ownCallUnanswered(ContextId id, WorkerId callee) {
    registry_->ownCallUnanswered(id, callee);
  }

  /// The program has opened a context here.
  void opened(ContextId id) {
    registry_->opened(id);
  }
  /// Releases a context here and on all workers that it has reached, which is not waited for. Throws c10::Error when
  /// there is no such context here.
  void release(ContextId id);

  /// A peer has gone for good, or a new one has come. They may be called on a loop; what they return may not.
  [[nodiscard]] std::function<void()> peerGone(WorkerId peer) {
    return registry_->workerGone(peer);
  }
  [[nodiscard]] std::function<void()> peerJoined(WorkerId peer) {
    return registry_->workerIsNew(peer);
  }

  std::vector<ContextStatus> list() const;

 private:
  c10::intrusive_ptr<JitFuture> during(
      ContextId id, const std::function<c10::intrusive_ptr<JitFuture>()>& serve);
  c10::intrusive_ptr<JitFuture> serveRelease(WorkerId from, Dispatcher::RpcCommandBase& command);
  ContextRegistry::Outside outside();
  void tell(WorkerId worker, ContextId id, const ContextRegistry::Told& told);
  void tellAgain(WorkerId worker, ContextId id);
  ContextRegistry::Workers peers() const;
  ContextStatus statusOf(torch::distributed::autograd::DistAutogradContext& context) const;

  torch::distributed::rpc::RpcAgent& agent_;
  const std::weak_ptr<Engine> engine_;
  const std::shared_ptr<ContextRegistry> registry_;
};

} // namespace torchwire
