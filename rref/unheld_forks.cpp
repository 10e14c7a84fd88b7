#include "rref/unheld_forks.h"

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <exception>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backend/base/log.h"
#include "backend/serve/signals.h"
#include "rref/context_view.h"
#include "rref/own_requests.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using Forks = std::unordered_set<GlobalId, GlobalIdHash>;

/// Those of the forks that other living workers hold; none if one of these does not say.
std::optional<Forks> heldByTheLiving(
    rpc::RpcAgent& agent, const ForkLedger& ledger, const std::vector<GlobalId>& forks,
    std::chrono::milliseconds patience) {
  const float seconds = std::chrono::duration<float>(patience).count();
  std::vector<c10::intrusive_ptr<rpc::JitFuture>> replies;
  for (const rpc::WorkerInfo& peer : agent.getWorkerInfos()) {
    if (peer.id_ != agent.getWorkerInfo().id_ && !ledger.isGone(peer.id_)) {
      replies.push_back(agent.send(peer, holdersRequest(forks), seconds));
    }
  }
  Forks held;
  bool complete = true;
  for (const auto& reply : replies) {
    awaitFuture(*reply); // ends with the call's time-out
    if (reply->hasError()) {
      log(LogLevel::info,
          "a worker did not say which forks it holds: " + reply->tryRetrieveErrorMessage());
      complete = false;
      continue;
    }
    for (const GlobalId& fork : forksIn(*reply->constValue().toCustomClass<rpc::Message>())) {
      held.insert(fork);
    }
  }
  return complete ? std::optional(std::move(held)) : std::nullopt;
}

struct Doubtful {
  std::vector<std::pair<GlobalId, GlobalId>>
      handedOut; // by this worker, their owner: RRefs and forks
  std::vector<rpc::ForkId> children; // of users of this worker's
};

Doubtful doubtfulForks(RRefService& service) {
  auto& context = rpc::RRefContext::getInstance();
  Doubtful doubtful;
  const auto known = service.ledger().holders();
  for (const OwnerView& owner : ownersOf(context)) {
    for (const GlobalId& fork : owner.forks) {
      if (fork != owner.id && !known.contains(fork)) {
        doubtful.handedOut.emplace_back(owner.id, fork);
      }
    }
  }
  doubtful.children = childrenOf(context);
  return doubtful;
}

void dropUnheld(
    RRefService& service, const Doubtful& doubtful, std::chrono::milliseconds patience) {
  auto& context = rpc::RRefContext::getInstance();
  std::vector<GlobalId> asked;
  for (const auto& [rref, fork] : doubtful.handedOut) {
    asked.push_back(fork);
  }
  for (const rpc::ForkId& child : doubtful.children) {
    asked.push_back(toGlobalId(child));
  }
  if (asked.empty()) {
    return;
  }
  const auto held = heldByTheLiving(*context.agent(), service.ledger(), asked, patience);
  if (!held) {
    return;
  }
  for (const auto& [rref, fork] : doubtful.handedOut) {
    if (!held->contains(fork)) {
      service.drop(rref, fork);
    }
  }
  for (const rpc::ForkId& child : doubtful.children) {
    if (!held->contains(toGlobalId(child))) {
      context.delPendingChild(child);
    }
  }
}

} // namespace

size_t countDoubtfulForks(RRefService& service) {
  const Doubtful doubtful = doubtfulForks(service);
  return doubtful.handedOut.size() + doubtful.children.size() +
      countsOf(rpc::RRefContext::getInstance()).pendingUsers;
}

void letGoUnconfirmedUsers() {
  for (const UserView& user : usersOf(rpc::RRefContext::getInstance())) {
    if (!user.confirmed) {
      letGoPendingUser(toTorchId(user.fork));
    }
  }
}

void dropUnheldForks(RRefService& service, std::chrono::milliseconds patience) {
  try {
    dropUnheld(service, doubtfulForks(service), patience);
  } catch (const std::exception& e) { // this worker is shutting down
    log(LogLevel::info, std::string("forks that nobody holds are not looked for: ") + e.what());
  }
}

} // namespace torchwire
