#include "rref/context_view.h"

#include <mutex>
#include <sstream>
#include <utility>

#include "backend/base/lock_rank.h"
#include "backend/base/log.h"
#include "rref/private_members.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

// References to RRefs that are taken under the context's mutex and dropped after it. To drop the last one of a
// user sends its delete, which takes the mutex.
using Kept = std::vector<c10::intrusive_ptr<rpc::RRef>>;

/// Holds the context's mutex, in its place among ours.
class RRefContextLock {
 public:
  explicit RRefContextLock(rpc::RRefContext& context) : lock_(context.*pointerTo(RRefLock())) {}

 private:
  const ForeignLock rank_{LockRank::rrefContext};
  const std::lock_guard<std::mutex> lock_;
};

UserView viewOf(
    const c10::intrusive_ptr<rpc::RRef>& rref, const rpc::ForkId& fork, bool confirmed) {
  return {
      toGlobalId(rref->rrefId()), toGlobalId(fork), rref->owner(), rref->type()->repr_str(),
      confirmed};
}

} // namespace

GlobalId toGlobalId(const rpc::GloballyUniqueId& id) {
  return {id.createdOn_, id.localId_};
}

rpc::GloballyUniqueId toTorchId(const GlobalId& id) {
  return {static_cast<rpc::worker_id_t>(id.createdOn), id.localId};
}

std::string toString(const GlobalId& id) {
  std::ostringstream text;
  text << toTorchId(id);
  return text.str();
}

namespace {

OwnerView viewOf(const c10::intrusive_ptr<rpc::RRef>& rref, const libtorch::ForksByRRef& forks) {
  OwnerView view{toGlobalId(rref->rrefId()), rref->type()->repr_str(), false, {}};
  view.hasValue = c10::static_intrusive_pointer_cast<rpc::OwnerRRef>(rref)->hasValue();
  const auto ofRRef = forks.find(rref->rrefId());
  if (ofRRef != forks.end()) {
    for (const rpc::ForkId& fork : ofRRef->second) {
      view.forks.push_back(toGlobalId(fork));
    }
  }
  return view;
}

} // namespace

std::vector<OwnerView> ownersOf(rpc::RRefContext& context) {
  std::vector<OwnerView> views;
  Kept kept;
  const RRefContextLock lock(context);
  for (const auto& [id, rref] : context.*pointerTo(RRefOwners())) {
    kept.push_back(rref);
    views.push_back(viewOf(rref, context.*pointerTo(RRefForks())));
  }
  return views;
}

c10::intrusive_ptr<rpc::OwnerRRef> findOwner(rpc::RRefContext& context, const rpc::RRefId& id) {
  const RRefContextLock lock(context);
  const auto& owners = context.*pointerTo(RRefOwners());
  const auto found = owners.find(id);
  return found == owners.end() ? nullptr
                               : c10::static_intrusive_pointer_cast<rpc::OwnerRRef>(found->second);
}

bool awaitsValue(rpc::RRefContext& context, const rpc::RRefId& id) {
  const RRefContextLock lock(context);
  const auto& owners = context.*pointerTo(RRefOwners());
  const auto found = owners.find(id);
  return found != owners.end() && !static_cast<const rpc::OwnerRRef&>(*found->second).hasValue();
}

namespace {

// Until the call has ended libtorch keeps the owner by a fork that has the owner's own id.
bool isKeptByItself(rpc::RRefContext& context, const rpc::RRefId& id) {
  const auto& forks = context.*pointerTo(RRefForks());
  const auto found = forks.find(id);
  return found != forks.end() && found->second.count(id) != 0;
}

} // namespace

std::vector<c10::intrusive_ptr<rpc::OwnerRRef>> ownersInCreation(rpc::RRefContext& context) {
  std::vector<c10::intrusive_ptr<rpc::OwnerRRef>> owners;
  Kept kept;
  const RRefContextLock lock(context);
  for (const auto& [id, rref] : context.*pointerTo(RRefOwners())) {
    kept.push_back(rref);
    auto owner = c10::static_intrusive_pointer_cast<rpc::OwnerRRef>(rref);
    if (!owner->hasValue() && isKeptByItself(context, id)) {
      owners.push_back(std::move(owner));
    }
  }
  return owners;
}

bool isInCreation(rpc::RRefContext& context, const rpc::OwnerRRef& owner) {
  const RRefContextLock lock(context);
  return isKeptByItself(context, owner.rrefId());
}

c10::intrusive_ptr<rpc::RRef> userCreatedBy(
    rpc::RRefContext& context, const rpc::JitFuture& creation) {
  c10::intrusive_ptr<rpc::RRef> user;
  const RRefContextLock lock(context);
  // libtorch gives the RRef its future before it enters it among these.
  forEachPendingUser(context, [&](const auto& /*fork*/, const auto& rref) {
    if (rref->getOwnerCreationFuture().get() == &creation) {
      user = rref;
    }
  });
  return user;
}

c10::intrusive_ptr<rpc::JitFuture> valueOf(const rpc::RRefId& id) {
  return rpc::RRefContext::getInstance().getOwnerRRef(id)->thenAsync(
      [](rpc::JitFuture& owner) {
        return rpc::fromRRefInterface(owner.value().toRRef())->getFuture();
      },
      at::AnyType::get());
}

std::vector<GlobalId> awaitedOwners(rpc::RRefContext& context) {
  std::vector<GlobalId> ids;
  const RRefContextLock lock(context);
  for (const auto& [id, owner] : context.*pointerTo(RRefPendingOwners())) {
    ids.push_back(toGlobalId(id));
  }
  return ids;
}

std::vector<UserView> usersOf(rpc::RRefContext& context) {
  std::vector<UserView> views;
  Kept kept; // declared before the lock, so it goes after it
  const RRefContextLock lock(context);
  forEachPendingUser(context, [&](const auto& fork, const auto& rref) {
    kept.push_back(rref);
    views.push_back(viewOf(rref, fork, false));
  });
  for (const auto& [fork, weak] : context.*pointerTo(RRefConfirmedUsers())) {
    auto rref = weak.lock();
    if (rref) {
      kept.push_back(std::move(rref));
      views.push_back(viewOf(kept.back(), fork, true));
    }
  }
  return views;
}

std::vector<rpc::ForkId> forksToBeConfirmedBy(rpc::RRefContext& context, int owner) {
  std::vector<rpc::ForkId> forks;
  const RRefContextLock lock(context);
  forEachPendingUser(context, [&](const auto& fork, const auto& rref) {
    if (rref->owner() == owner && !rref->getOwnerCreationFuture()) {
      forks.push_back(fork);
    }
  });
  return forks;
}

void letGoPendingUser(const rpc::ForkId& fork) {
  try {
    rpc::RRefContext::getInstance().delPendingUser(fork);
  } catch (const std::exception& e) { // it has been confirmed just now
    log(LogLevel::debug, std::string("a user of an RRef: ") + e.what());
  }
}

std::vector<rpc::ForkId> childrenOwnedBy(rpc::RRefContext& context, int owner) {
  std::vector<rpc::ForkId> forks;
  const RRefContextLock lock(context);
  for (const auto& [fork, rref] : context.*pointerTo(RRefPendingChildren())) {
    if (rref->owner() == owner) {
      forks.push_back(fork);
    }
  }
  return forks;
}

std::vector<rpc::ForkId> childrenOf(rpc::RRefContext& context) {
  std::vector<rpc::ForkId> forks;
  const RRefContextLock lock(context);
  for (const auto& [fork, rref] : context.*pointerTo(RRefPendingChildren())) {
    forks.push_back(fork);
  }
  return forks;
}

ContextCounts countsOf(rpc::RRefContext& context) {
  const RRefContextLock lock(context);
  ContextCounts counts{};
  for (const auto& [id, forks] : context.*pointerTo(RRefForks())) {
    counts.forks += forks.size();
  }
  counts.owners = (context.*pointerTo(RRefOwners())).size();
  forEachPendingUser(context, [&](const auto&, const auto&) { ++counts.pendingUsers; });
  counts.confirmedUsers = (context.*pointerTo(RRefConfirmedUsers())).size();
  counts.pendingChildren = (context.*pointerTo(RRefPendingChildren())).size();
  return counts;
}

} // namespace torchwire
