// What libtorch's RRefContext holds, at one moment.
#pragma once

#include <torch/csrc/distributed/rpc/rref_context.h>

#include <string>
#include <vector>

#include "rref/ledger/global_id.h"

namespace torchwire {

GlobalId toGlobalId(const torch::distributed::rpc::GloballyUniqueId& id);
torch::distributed::rpc::GloballyUniqueId toTorchId(const GlobalId& id);
/// As PyTorch prints it.
std::string toString(const GlobalId& id);

struct OwnerView {
  GlobalId id;
  std::string type;
  bool hasValue; // or an error
  std::vector<GlobalId> forks;
};

struct UserView {
  GlobalId id;
  GlobalId fork;
  int ownerId;
  std::string type;
  bool confirmed;
};

struct ContextCounts {
  size_t owners;
  size_t forks;
  size_t pendingUsers;
  size_t confirmedUsers;
  size_t pendingChildren;
};

/// The RRefs that this worker owns: those that others have forks of, and those being created.
std::vector<OwnerView> ownersOf(torch::distributed::rpc::RRefContext& context);
/// Whether one of them has neither a value nor an error yet.
bool awaitsValue(
    torch::distributed::rpc::RRefContext& context, const torch::distributed::rpc::RRefId& id);
/// Those that a call of this worker to itself is creating, and that have no value yet.
std::vector<c10::intrusive_ptr<torch::distributed::rpc::OwnerRRef>> ownersInCreation(
    torch::distributed::rpc::RRefContext& context);
/// Whether libtorch still waits for the end of that call.
bool isInCreation(
    torch::distributed::rpc::RRefContext& context, const torch::distributed::rpc::OwnerRRef& owner);
/// The owner with this id, or null.
c10::intrusive_ptr<torch::distributed::rpc::OwnerRRef> findOwner(
    torch::distributed::rpc::RRefContext& context, const torch::distributed::rpc::RRefId& id);
/// The RRef of another worker that the call with this future creates, while libtorch waits for its end; or null.
c10::intrusive_ptr<torch::distributed::rpc::RRef> userCreatedBy(
    torch::distributed::rpc::RRefContext& context,
    const torch::distributed::rpc::JitFuture& creation);
/// The RRefs that are asked for though this worker does not know them yet.
std::vector<GlobalId> awaitedOwners(torch::distributed::rpc::RRefContext& context);
/// The forks that live on this worker.
std::vector<UserView> usersOf(torch::distributed::rpc::RRefContext& context);
/// The future of the value of an RRef that this worker owns, or will own once it has been created.
c10::intrusive_ptr<torch::distributed::rpc::JitFuture> valueOf(
    const torch::distributed::rpc::RRefId& id);
/// The forks that wait for their owner to know them, but for those whose creation it is: that fails with its call.
std::vector<torch::distributed::rpc::ForkId> forksToBeConfirmedBy(
    torch::distributed::rpc::RRefContext& context, int owner);
/// Ends libtorch's wait for the confirmation of a fork, if it still waits.
void letGoPendingUser(const torch::distributed::rpc::ForkId& fork);
/// Forks that this worker, a user itself, has handed on, and for which it keeps its own until the owner knows them.
std::vector<torch::distributed::rpc::ForkId> childrenOwnedBy(
    torch::distributed::rpc::RRefContext& context, int owner);
/// All of these.
std::vector<torch::distributed::rpc::ForkId> childrenOf(
    torch::distributed::rpc::RRefContext& context);
ContextCounts countsOf(torch::distributed::rpc::RRefContext& context);

} // namespace torchwire
