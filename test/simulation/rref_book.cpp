#include "test/simulation/rref_book.h"

#include <utility>
#include <vector>

#include "test/simulation/bug.h"

namespace torchwire::simulation {

using std::chrono::microseconds;

RRefBook::RRefBook(
    World& world, Sender& sender, WorkerId self, int64_t firstId, Incarnation incarnation)
    : world_(world),
      sender_(sender),
      self_(self),
      next_(firstId),
      incarnation_(std::move(incarnation)),
      ledger_(*this, [this] { return world_.queue.now(); }) {}

// ---- the program --------------------------------------------------------------------------------

bool RRefBook::create(WorkerId to) {
  if (to == self_) {
    return false;
  }
  Message request;
  request.kind = MessageKind::create;
  request.rref = draw();
  request.fork = draw();
  request.owner = to;
  users_[request.fork] = {request.rref, to, incarnation_(to), true, true, 0};
  sender_.request(to, request, {}, [this, fork = request.fork](const Error& error) {
    const auto user = users_.find(fork);
    if (user == users_.end()) {
      return;
    }
    if (error) { // libtorch takes it for confirmed, and the program has no use for it
      user->second.held = false;
    }
    confirm(fork);
  });
  return true;
}

bool RRefBook::pass(uint64_t choice, WorkerId to, bool keep, const CanRead& canRead) {
  std::vector<Message> candidates;
  for (const auto& [fork, user] : users_) {
    // An orphan is not handed on: another process under its owner's name may not know it for one (docs/reliability.md).
    const bool isOrphan =
        orphans_.contains(user.rref) || user.ownersIncarnation != incarnation_(user.owner);
    if (user.held && !user.pending && !isOrphan && to != self_) {
      Message message;
      message.rref = user.rref;
      message.fork = fork;
      message.owner = user.owner;
      candidates.push_back(message);
    }
  }
  for (const auto& [rref, one] : owned_) {
    if (one.hasValue && to != self_) {
      Message message;
      message.rref = rref;
      message.owner = self_;
      candidates.push_back(message);
    }
  }
  if (candidates.empty()) {
    return false;
  }
  Message request = candidates[choice % candidates.size()];
  if (!canRead(request.owner, request.rref)) {
    return false;
  }
  const GlobalId parents = request.fork;
  request.kind = MessageKind::pass;
  request.keep = keep;
  request.parent = self_;
  request.fork = draw();
  if (request.owner == self_) {
    add(request.rref, request.fork);
  } else {
    ++users_[parents].children;
    children_[request.fork] = parents;
  }
  passed_.pickled({request.rref, request.fork, request.owner}, self_);
  request.pickled = request.pickle();
  const uint64_t call = sender_.request(to, request, {}, [](const Error&) {});
  world_.oracle.carries({call, request.rref, request.fork});
  return true;
}

bool RRefBook::drop(uint64_t choice) {
  std::vector<GlobalId> held;
  for (const auto& [fork, user] : users_) {
    if (user.held) {
      held.push_back(fork);
    }
  }
  if (held.empty()) {
    return false;
  }
  const GlobalId fork = held[choice % held.size()];
  users_[fork].held = false;
  deleteIfUnused(fork);
  return true;
}

void RRefBook::dropAll(bool force) {
  while (force && !children_.empty()) {
    endChild(children_.begin()->first);
  }
  while (drop(0)) {
  }
}

// ---- users --------------------------------------------------------------------------------------

void RRefBook::confirm(const GlobalId& fork) {
  const auto user = users_.find(fork);
  if (user != users_.end()) {
    user->second.pending = false;
    deleteIfUnused(fork);
  }
}

void RRefBook::endChild(const GlobalId& child) {
  const auto found = children_.find(child);
  if (found == children_.end()) {
    return;
  }
  const GlobalId fork = found->second;
  children_.erase(found);
  --users_[fork].children;
  deleteIfUnused(fork);
}

void RRefBook::deleteIfUnused(const GlobalId& fork) {
  const auto found = users_.find(fork);
  const User& user = found->second;
  if (user.held || user.pending || user.children > 0) {
    return;
  }
  Message message;
  message.kind = MessageKind::userDelete;
  message.rref = user.rref;
  message.fork = fork;
  const WorkerId owner = user.owner;
  users_.erase(found);
  sender_.keepBooks(owner, message, [] {});
}

// ---- requests -----------------------------------------------------------------------------------

void RRefBook::serveCreation(WorkerId caller, const Message& request, const Answer& answer) {
  if (ledger_.begin(request.rref, request.fork, caller, answer)) {
    sender_.later(microseconds(sender_.random().below(30000)), [this, request] { enter(request); });
  }
}

/// The function has run; its value may still be to come.
void RRefBook::enter(const Message& request) {
  owned_[request.rref];
  ledger_.entered(request.fork);
  sender_.later(microseconds(sender_.random().below(3000)), [this, request] {
    const auto owned = owned_.find(request.rref);
    if (owned != owned_.end()) {
      owned->second.hasValue = true;
    }
    ledger_.finished(request.fork);
  });
}

std::function<void()> RRefBook::receive(const Message& request) {
  Message accept;
  accept.kind = MessageKind::childAccept;
  accept.fork = request.fork;
  if (request.owner == self_) {
    owned_[request.rref];
    if (awaitsValue(request.rref)) {
      ledger_.keepUntilEntered(request.rref);
    }
    sender_.keepBooks(request.parent, accept, [] {});
    return [] {};
  }
  const GlobalId fork = request.fork;
  const bool isOwners = request.parent == request.owner;
  users_[fork] = {request.rref, request.owner, incarnation_(request.owner), true, !isOwners, 0};
  if (!isOwners) {
    Message tell;
    tell.kind = MessageKind::forkRequest;
    tell.rref = request.rref;
    tell.fork = fork;
    sender_.keepBooks(request.owner, tell, [this, fork, accept, parent = request.parent] {
      confirm(fork);
      sender_.keepBooks(parent, accept, [] {});
    });
  }
  if (request.keep) {
    return [] {};
  }
  return [this, fork] {
    const auto user = users_.find(fork);
    if (user != users_.end() && user->second.held) {
      user->second.held = false;
      deleteIfUnused(fork);
    }
  };
}

void RRefBook::serveForkRequest(WorkerId caller, const Message& request) {
  ledger_.add(request.rref, request.fork, caller);
}

void RRefBook::serveChildAccept(const Message& request) {
  passed_.settled(request.fork);
  endChild(request.fork);
}

void RRefBook::serveDelete(const Message& request) {
  passed_.settled(request.fork);
  ledger_.remove(request.rref, request.fork);
}

PassedForks::Forks RRefBook::noteSent(WorkerId to, const Message& message) {
  PassedForks::Forks forks;
  if (!message.pickled.empty()) {
    forks = passed_.sent(to, message.pickled);
  }
  if (!forks.empty() && ledger_.isGone(to)) {
    sender_.later(Duration(0), [this, to] { reclaim(passed_.takeThoseOf(to)); });
  }
  return forks;
}

bool RRefBook::deletesOrphan(const Message& message) {
  return message.kind == MessageKind::userDelete && orphans_.any() && orphans_.remove(message.fork);
}

// ---- workers that are gone -----------------------------------------------------------------------

void RRefBook::workerGone(WorkerId worker, const Error& why) {
  std::vector<GlobalId> pending, children;
  for (const auto& [fork, user] : users_) {
    if (user.owner == worker) {
      orphans_.add(user.rref, fork);
      if (user.pending) {
        pending.push_back(fork);
      }
    }
  }
  for (const auto& [child, fork] : children_) {
    if (users_[fork].owner == worker) {
      children.push_back(child);
    }
  }
  if (!planted(Bug::keepsForksOfDead)) {
    ledger_.workerGone(worker, why);
    ledger_.reclaim(worker);
  }
  for (const GlobalId& child : children) {
    endChild(child);
  }
  for (const GlobalId& fork : pending) {
    confirm(fork);
  }
  if (!planted(Bug::keepsForksOfDead)) {
    reclaim(passed_.takeThoseOf(worker));
  }
}

void RRefBook::reclaim(const std::vector<PassedForks::Fork>& forks) {
  for (const PassedForks::Fork& passed : forks) {
    if (passed.owner == self_) {
      ledger_.remove(passed.rref, passed.fork);
    } else {
      endChild(passed.fork);
    }
  }
}

// ---- the table ----------------------------------------------------------------------------------

void RRefBook::add(const GlobalId& rref, const GlobalId& fork) {
  forks_[rref].insert(fork);
}

ForkTable::Released RRefBook::remove(const GlobalId& rref, const GlobalId& fork) {
  const auto found = forks_.find(rref);
  if (found == forks_.end() || found->second.erase(fork) == 0 || !found->second.empty()) {
    return nullptr;
  }
  forks_.erase(found);
  owned_.erase(rref);
  return nullptr;
}

bool RRefBook::awaitsValue(const GlobalId& rref) {
  const auto owned = owned_.find(rref);
  return rref.createdOn != self_ && owned != owned_.end() && !owned->second.hasValue;
}

} // namespace torchwire::simulation
