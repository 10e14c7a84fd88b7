// The private members of RRefContext and RRef that torchwire uses. What mutex_ guards is only read while an agent serves.
// Each has its reason; no public function of torch 2.11 to 2.15 leads to any of them.
// Each tag states its member's type: another one in a later release stops the build (private_member.h).
#pragma once

#include <torch/csrc/distributed/rpc/rref_context.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "backend/base/private_member.h"

namespace torchwire {
namespace libtorch {

using torch::distributed::rpc::ForkId;
using torch::distributed::rpc::JitFuture;
using torch::distributed::rpc::RpcAgent;
using torch::distributed::rpc::RRef;
using torch::distributed::rpc::RRefContext;
using torch::distributed::rpc::RRefId;
using torch::distributed::rpc::UserRRef;

using RRefsById = std::unordered_map<RRefId, c10::intrusive_ptr<RRef>, RRefId::Hash>;
using ForksByRRef =
    std::unordered_map<RRefId, std::unordered_set<ForkId, ForkId::Hash>, RRefId::Hash>;
using PendingOwners = std::unordered_map<RRefId, c10::intrusive_ptr<JitFuture>, RRefId::Hash>;
using UsersByFork = std::unordered_map<ForkId, c10::weak_intrusive_ptr<RRef>, ForkId::Hash>;

} // namespace libtorch

// Guards owners, forks, users and pending children.
struct RRefLock {
  using Member = std::mutex libtorch::RRefContext::*;
  friend auto pointerTo(RRefLock);
};
// torchwire.rrefs() lists the owners; RRefContext counts them.
struct RRefOwners {
  using Member = libtorch::RRefsById libtorch::RRefContext::*;
  friend auto pointerTo(RRefOwners);
};
// The forks of an owner, for rrefs() and the leak report. The ledger knows those that came by message, but not
// those that the owner itself has handed out.
struct RRefForks {
  using Member = libtorch::ForksByRRef libtorch::RRefContext::*;
  friend auto pointerTo(RRefForks);
};
// torchwire.rrefs() lists the users that their owner has confirmed.
struct RRefConfirmedUsers {
  using Member = libtorch::UsersByFork libtorch::RRefContext::*;
  friend auto pointerTo(RRefConfirmedUsers);
};
// Users that are kept for a child whose owner has not accepted it: a count, to see that none stays behind.
struct RRefPendingChildren {
  using Member = libtorch::RRefsById libtorch::RRefContext::*;
  friend auto pointerTo(RRefPendingChildren);
};
// Whether RRefContext has been destroyed, as it takes it: then it sends nothing for an RRef that is dropped. The only
// function that sets it goes on to read and clear the tables without their lock (context_lifetime.h).
struct RRefsDestroyed {
  using Member = bool libtorch::RRefContext::*;
  friend auto pointerTo(RRefsDestroyed);
};
struct RRefsDestroyedLock {
  using Member = std::mutex libtorch::RRefContext::*;
  friend auto pointerTo(RRefsDestroyedLock);
};
// Lets what is left of one RPC lifetime go before the next (context_lifetime.h): libtorch has no function for that.
struct RRefAgent {
  using Member = const std::shared_ptr<libtorch::RpcAgent> libtorch::RRefContext::*;
  friend auto pointerTo(RRefAgent);
};
// Also those that are fetched before their creation has come: where it will not come any more, they have to be told.
struct RRefPendingOwners {
  using Member = libtorch::PendingOwners libtorch::RRefContext::*;
  friend auto pointerTo(RRefPendingOwners);
};
struct RRefPendingFutures {
  using Member = std::atomic<int64_t> libtorch::RRefContext::*;
  friend auto pointerTo(RRefPendingFutures);
};
// Whether nothing is left to be sent for a user: so it is once the lifetime that it was made in ends, and never before
// while somebody can use it.
struct RRefUserDeleted {
  using Member = bool libtorch::UserRRef::*;
  friend auto pointerTo(RRefUserDeleted);
};
// Whether an RRef's creation has failed. The function that sets it is protected, and the one that calls that is wrong
// (failed_creation.h). An atomic, read and written without a lock.
struct RRefTimedOut {
  using Member = std::atomic<bool> libtorch::RRef::*;
  friend auto pointerTo(RRefTimedOut);
};

// A process that comes in place of one that has died must not give ids that are in use. libtorch counts from 0.
struct NextRRefId {
  using Member = std::atomic<torch::distributed::rpc::local_id_t>*;
  friend auto pointerTo(NextRRefId);
};

// torchwire.rrefs() lists the users that their owner has not confirmed, too. Their states are of a private
// class, whose name not even a tag may say; so here the whole function is a friend.
using OnUser =
    std::function<void(const libtorch::ForkId&, const c10::intrusive_ptr<libtorch::RRef>&)>;
void forEachPendingUser(libtorch::RRefContext& context, const OnUser& onUser);

/// Empties the table of these, and adds them to `users`. What is returned is to be dropped when the mutex is free.
std::shared_ptr<void> takePendingUsers(
    libtorch::RRefContext& context, std::vector<c10::intrusive_ptr<libtorch::RRef>>& users);

template <typename States>
void forEachState(const States& states, const OnUser& onUser) {
  for (const auto& [fork, state] : states) {
    onUser(fork, state->rref_);
  }
}

template <typename States>
std::shared_ptr<void> takeStates(
    States& states, std::vector<c10::intrusive_ptr<libtorch::RRef>>& users) {
  auto taken = std::make_shared<States>();
  taken->swap(states);
  for (const auto& [fork, state] : *taken) {
    users.push_back(state->rref_);
  }
  return taken;
}

template <auto pendingUsers>
struct PendingRRefUsers {
  friend std::shared_ptr<void> takePendingUsers(
      libtorch::RRefContext& context, std::vector<c10::intrusive_ptr<libtorch::RRef>>& users) {
    return takeStates(context.*pendingUsers, users);
  }
  friend void forEachPendingUser(libtorch::RRefContext& context, const OnUser& onUser) {
    forEachState(context.*pendingUsers, onUser); // GCC 12 deduces no `auto` in here
  }
};

template struct PrivateMember<RRefLock, &libtorch::RRefContext::mutex_>;
template struct PrivateMember<RRefOwners, &libtorch::RRefContext::owners_>;
template struct PrivateMember<RRefForks, &libtorch::RRefContext::forks_>;
template struct PrivateMember<RRefConfirmedUsers, &libtorch::RRefContext::confirmedUsers_>;
template struct PrivateMember<RRefPendingChildren, &libtorch::RRefContext::pendingChildren_>;
template struct PrivateMember<RRefsDestroyed, &libtorch::RRefContext::destroyed_>;
template struct PrivateMember<RRefsDestroyedLock, &libtorch::RRefContext::destroyedMutex_>;
template struct PrivateMember<RRefAgent, &libtorch::RRefContext::agent_>;
template struct PrivateMember<RRefPendingOwners, &libtorch::RRefContext::pendingOwners_>;
template struct PrivateMember<RRefPendingFutures, &libtorch::RRefContext::numPendingFutures_>;
template struct PrivateMember<RRefUserDeleted, &libtorch::UserRRef::deletedOnOwner_>;
template struct PrivateMember<RRefTimedOut, &libtorch::RRef::timedOut_>;
template struct PrivateMember<NextRRefId, &libtorch::RRefContext::nextLocalId_>;
template struct PendingRRefUsers<&libtorch::RRefContext::pendingUsers_>;

template <typename Tag>
constexpr bool kAsStated = std::is_same_v<decltype(pointerTo(Tag())), typename Tag::Member>;
static_assert(
    kAsStated<RRefLock> && kAsStated<RRefOwners> && kAsStated<RRefForks> &&
    kAsStated<RRefConfirmedUsers> && kAsStated<RRefPendingChildren> && kAsStated<RRefTimedOut> &&
    kAsStated<RRefsDestroyed> && kAsStated<RRefsDestroyedLock> && kAsStated<NextRRefId> &&
    kAsStated<RRefAgent> && kAsStated<RRefPendingOwners> && kAsStated<RRefPendingFutures> &&
    kAsStated<RRefUserDeleted>);

} // namespace torchwire
