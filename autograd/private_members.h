// What torchwire uses of the private parts of libtorch's distributed autograd. Nothing else in the project reaches in
// there. Each has its reason; each use is checked against its type when it is compiled.
#pragma once

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/context/context.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>
#include <torch/csrc/distributed/autograd/functions/recvrpc_backward.h>

#include "backend/base/private_member.h"

namespace torchwire {

// A GraphTask cannot be made outside libtorch. This makes one for a context, from its roots and all of its send
// functions, with the hooks that accumulate gradients in the context and that DDP's reducer listens to.
struct ComputeDependencies {
  friend auto pointerTo(ComputeDependencies);
};
template struct PrivateMember<
    ComputeDependencies, &torch::distributed::autograd::DistEngine::computeDependencies>;

// Evaluates a GraphTask. Its own queue type is not exported, so it cannot be driven from outside.
struct EvaluateUntilQueueEmpty {
  friend auto pointerTo(EvaluateUntilQueueEmpty);
};
template struct PrivateMember<
    EvaluateUntilQueueEmpty,
    &torch::distributed::autograd::DistEngine::execute_graph_task_until_ready_queue_empty>;

// The set of contexts in which a pass runs: what _get_debug_info counts, and what keeps libtorch's engine and
// torchwire's out of each other's contexts.
struct InitializedContextIds {
  friend auto pointerTo(InitializedContextIds);
};
template struct PrivateMember<
    InitializedContextIds, &torch::distributed::autograd::DistEngine::initializedContextIds_>;
struct InitializedContextIdsLock {
  friend auto pointerTo(InitializedContextIdsLock);
};
template struct PrivateMember<
    InitializedContextIdsLock,
    &torch::distributed::autograd::DistEngine::initializedContextIdsLock_>;

// computeDependencies leaves the GraphTask in the context, where recv functions look for it.
struct RetrieveGraphTask {
  friend auto pointerTo(RetrieveGraphTask);
};
template struct PrivateMember<
    RetrieveGraphTask, &torch::distributed::autograd::DistAutogradContext::retrieveGraphTask>;
struct ResetGraphTask {
  friend auto pointerTo(ResetGraphTask);
};
template struct PrivateMember<
    ResetGraphTask, &torch::distributed::autograd::DistAutogradContext::resetGraphTask>;

// Recv functions leave futures in the context, one for each request. They say nothing (Agent::send).
struct ClearOutstandingRpcs {
  friend auto pointerTo(ClearOutstandingRpcs);
};
template struct PrivateMember<
    ClearOutstandingRpcs, &torch::distributed::autograd::DistAutogradContext::clearOutstandingRpcs>;

// Where a recv function sends its gradients: the search for the exact set has to go there before they do, and the end
// of a pass that has failed after them.
struct RecvMetadata {
  friend auto pointerTo(RecvMetadata);
};
template struct PrivateMember<
    RecvMetadata, &torch::distributed::autograd::RecvRpcBackward::autogradMetadata_>;
struct RecvFromWorker {
  friend auto pointerTo(RecvFromWorker);
};
template struct PrivateMember<
    RecvFromWorker, &torch::distributed::autograd::RecvRpcBackward::fromWorkerId_>;

// All contexts of this worker, in shards: each has a `lock` and, guarded by it, `contexts` by their ids. The public
// methods find one by its id, but list none; and those that remove one also send libtorch's own messages about it.
struct ContainerShards {
  friend auto pointerTo(ContainerShards);
};
template struct PrivateMember<
    ContainerShards, &torch::distributed::autograd::DistAutogradContainer::autograd_contexts_>;

// A process that comes in place of one that has died must not give ids that are in use, nor one that joins another group
// later. libtorch counts from 0.
struct NextContextId {
  friend auto pointerTo(NextContextId);
};
template struct PrivateMember<
    NextContextId, &torch::distributed::autograd::DistAutogradContainer::next_context_id_>;
struct NextAutogradMessageId {
  friend auto pointerTo(NextAutogradMessageId);
};
template struct PrivateMember<
    NextAutogradMessageId,
    &torch::distributed::autograd::DistAutogradContainer::next_autograd_message_id_>;

// The container also before libtorch has set it up, and whether it has.
struct ContainerInstance {
  friend auto pointerTo(ContainerInstance);
};
template struct PrivateMember<
    ContainerInstance, &torch::distributed::autograd::DistAutogradContainer::getInstanceInternal>;
struct ContainerIsInitialized {
  friend auto pointerTo(ContainerIsInitialized);
};
template struct PrivateMember<
    ContainerIsInitialized, &torch::distributed::autograd::DistAutogradContainer::initialized_>;

// The worker whose ids the container makes. libtorch sets it once, and refuses another one.
struct ContainerWorkerId {
  friend auto pointerTo(ContainerWorkerId);
};
template struct PrivateMember<
    ContainerWorkerId, &torch::distributed::autograd::DistAutogradContainer::worker_id_>;
struct ContainerMaxId {
  friend auto pointerTo(ContainerMaxId);
};
template struct PrivateMember<
    ContainerMaxId, &torch::distributed::autograd::DistAutogradContainer::max_id_>;

// What guards a context's fields, and its gradients: the public getGradients() hands them out to be read without it.
struct ContextLock {
  friend auto pointerTo(ContextLock);
};
template struct PrivateMember<
    ContextLock, &torch::distributed::autograd::DistAutogradContext::lock_>;
struct ContextGradients {
  friend auto pointerTo(ContextGradients);
};
template struct PrivateMember<
    ContextGradients, &torch::distributed::autograd::DistAutogradContext::accumulatedGrads_>;

} // namespace torchwire
