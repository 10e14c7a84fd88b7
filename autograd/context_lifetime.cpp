#include "autograd/context_lifetime.h"

#include <torch/csrc/distributed/autograd/context/container.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>

#include "autograd/private_members.h"
#include "backend/base/lock_rank.h"

namespace torchwire {
namespace {

using torch::distributed::autograd::DistAutogradContainer;

constexpr int64_t kCounterMask = (int64_t{1} << kContextCounterBits) - 1;
constexpr int64_t kMaxWorker = 65535; // libtorch's

std::atomic<int64_t> firstCount{0}; // the counter of this lifetime's first context

/// Null before libtorch has set it up.
DistAutogradContainer* container() {
  auto& container =
      (*pointerTo(ContainerInstance()))(); // getInstance() would throw, which takes long
  return container.*pointerTo(ContainerIsInitialized()) ? &container : nullptr;
}

} // namespace

void moveContextsTo(int64_t worker) {
  auto* const ours = container();
  if (ours == nullptr || worker < 0 || worker > kMaxWorker) { // the latter libtorch refuses
    return;
  }
  const int64_t base = worker << kContextCounterBits;
  for (auto* const next :
       {&(ours->*pointerTo(NextContextId())), &(ours->*pointerTo(NextAutogradMessageId()))}) {
    *next = base | (*next & kCounterMask);
  }
  ours->*pointerTo(ContainerMaxId()) = base | kCounterMask;
  ours->*pointerTo(ContainerWorkerId()) = static_cast<int16_t>(worker); // as libtorch converts it
}

void endContexts() {
  auto* const ours = container();
  if (ours == nullptr) {
    return;
  }
  firstCount = ours->*pointerTo(NextContextId()) & kCounterMask;
  for (auto& shard : ours->*pointerTo(ContainerShards())) {
    decltype(shard.contexts) dropped; // once the lock is free
    const ForeignLock rank(LockRank::autogradContainer);
    const std::lock_guard<std::mutex> lock(shard.lock);
    dropped.swap(shard.contexts);
  }
}

bool isOfEndedLifetime(int64_t context) {
  if (context < 0 || (context & kCounterMask) >= firstCount) {
    return false;
  }
  const ForeignLock libtorchs(LockRank::autogradContainer); // taken to look it up
  try { // another worker's may have any number
    DistAutogradContainer::getInstance().isValidContext(context);
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

void expectOfThisLifetime(int64_t context) {
  if (isOfEndedLifetime(context)) {
    throw std::runtime_error(
        "autograd context " + std::to_string(context) +
        " belongs to an RPC lifetime that has ended, or has been released: rpc.shutdown() ends all "
        "contexts. Open another one, with torch.distributed.autograd.context()");
  }
}

void leaveEndedContext() {
  if (isOfEndedLifetime(DistAutogradContainer::currentContextId())) {
    DistAutogradContainer::getInstance().clearCurrentContext();
  }
}

} // namespace torchwire
