#include "rref/context_lifetime.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "backend/base/lock_rank.h"
#include "rref/ended_agent.h"
#include "rref/private_members.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using RRefs = std::vector<c10::intrusive_ptr<rpc::RRef>>;

/// What tells RRefs of this lifetime from those of an earlier one. A value.
struct Earlier {
  rpc::worker_id_t self = 0;
  rpc::local_id_t firstId = 0; // that this process makes in this lifetime
  // Owners that the program may still hold. Weak references keep their addresses from being used again.
  std::vector<c10::weak_intrusive_ptr<rpc::RRef>> owners;

  bool hasOwner(const rpc::RRef& owner) const {
    const rpc::RRefId& id = owner.rrefId();
    return owner.owner() != self || (id.createdOn_ == self && id.localId_ < firstId) ||
        std::any_of(owners.begin(), owners.end(), [&](const auto& one) {
             return one._unsafe_get_target() == &owner;
           });
  }
};

// Replaced as a lifetime begins or ends, which happens on one thread at a time; read on any. Never destroyed: an owner of
// which nothing else is left frees its value then, which may be Python's, and when the process ends Python has ended.
std::atomic<std::shared_ptr<const Earlier>>& earlier =
    *new std::atomic<std::shared_ptr<const Earlier>>(std::make_shared<const Earlier>());
std::atomic<uint64_t> lifetime = 0;
bool contextIsTorchwires = false; // or has been

/// Takes note of the owners of the lifetime that is about to end.
void noteOwners(rpc::RRefContext& context) {
  Earlier now = *earlier.load();
  std::erase_if(now.owners, [](const auto& owner) { return owner.expired(); });
  {
    const ForeignLock rank(LockRank::rrefContext);
    const std::lock_guard lock(context.*pointerTo(RRefLock()));
    for (const auto& [id, owner] : context.*pointerTo(RRefOwners())) {
      now.owners.emplace_back(owner);
    }
  }
  earlier = std::make_shared<const Earlier>(std::move(now));
}

/// Empties the context's tables of a lifetime whose agent sends nothing any more.
void retire(rpc::RRefContext& context) {
  RRefs owners;
  RRefs users;
  libtorch::PendingOwners
      pendingOwners; // these go once the mutex is free again: destructors may take it
  libtorch::RRefsById pendingChildren;
  libtorch::UsersByFork confirmedUsers;
  const auto pendingUsers = [&] {
    const ForeignLock rank(LockRank::rrefContext);
    const std::lock_guard lock(context.*pointerTo(RRefLock()));
    for (auto& [id, owner] : context.*pointerTo(RRefOwners())) {
      owners.push_back(std::move(owner));
    }
    (context.*pointerTo(RRefOwners())).clear();
    (context.*pointerTo(RRefForks())).clear();
    pendingOwners.swap(context.*pointerTo(RRefPendingOwners()));
    pendingChildren.swap(context.*pointerTo(RRefPendingChildren()));
    confirmedUsers.swap(context.*pointerTo(RRefConfirmedUsers()));
    return takePendingUsers(context, users);
  }();
  for (const auto& [fork, user] : confirmedUsers) {
    if (auto alive = user.lock()) {
      users.push_back(std::move(alive));
    }
  }
  for (const auto& [fork, user] : pendingChildren) {
    users.push_back(user);
  }
  for (const auto& user : users) {
    user->tryDel(); // sends nothing, as the context has been destroyed, and notes that nothing is left to be sent
  }
  context.*pointerTo(RRefPendingFutures()) = 0;
}

void setDestroyed(rpc::RRefContext& context, bool destroyed) {
  const ForeignLock rank(LockRank::rrefContext);
  const std::lock_guard lock(context.*pointerTo(RRefsDestroyedLock()));
  context.*pointerTo(RRefsDestroyed()) = destroyed;
}

/// Returns the agent that was the context's, which is to be dropped without locks.
[[nodiscard]] std::shared_ptr<rpc::RpcAgent> exchangeAgent(
    rpc::RRefContext& context, std::shared_ptr<rpc::RpcAgent> agent) {
  const ForeignLock rank(LockRank::rrefContext);
  const std::lock_guard lock(context.*pointerTo(RRefLock()));
  const auto& member = context.*pointerTo(RRefAgent());
  auto former = member;
  // The member is const, so another one takes its place ([basic.life]).
  std::destroy_at(&member);
  std::construct_at(const_cast<std::shared_ptr<rpc::RpcAgent>*>(&member), std::move(agent));
  return former;
}

bool begin(rpc::RRefContext& context, std::shared_ptr<rpc::RpcAgent> agent) {
  Earlier now = *earlier.load();
  now.self = agent->getWorkerInfo().id_;
  now.firstId = *pointerTo(NextRRefId());
  earlier = std::make_shared<const Earlier>(std::move(now));
  ++lifetime;
  if (context.agent() == agent) { // made for it just now
    return false;
  }
  setDestroyed(context, true);
  retire(context);
  const auto former = exchangeAgent(context, std::move(agent));
  setDestroyed(context, false);
  return true;
}

} // namespace

void endDeletesOfRRefs() {
  auto& context = rpc::RRefContext::getInstance();
  noteOwners(context); // destroyInstance drops them
  setDestroyed(context, true);
}

bool beginRRefs(std::shared_ptr<rpc::RpcAgent> agent) {
  contextIsTorchwires = true;
  return begin(rpc::RRefContext::getInstance(), std::move(agent));
}

void beginForeignRRefs(std::shared_ptr<rpc::RpcAgent> agent) {
  if (contextIsTorchwires) {
    begin(rpc::RRefContext::getInstance(), std::move(agent));
  }
}

void endRRefs() {
  if (!contextIsTorchwires) {
    return;
  }
  auto& context = rpc::RRefContext::getInstance();
  setDestroyed(context, true);
  retire(context);
  const auto former = exchangeAgent(context, std::make_shared<EndedAgent>(*context.agent()));
}

uint64_t rrefLifetime() {
  return lifetime;
}

void expectOfThisLifetime(const rpc::RRef& rref) {
  const bool hasEnded = rref.isOwner()
      ? earlier.load()->hasOwner(rref)
      : static_cast<const rpc::UserRRef&>(rref).*pointerTo(RRefUserDeleted());
  if (hasEnded) {
    std::ostringstream text;
    text << rref
         << " belongs to an RPC lifetime that has ended: rpc.shutdown() was called after it was "
            "made. After another init_rpc, make it anew, by rpc.remote() or rpc.RRef()";
    throw std::runtime_error(text.str());
  }
}

} // namespace torchwire
