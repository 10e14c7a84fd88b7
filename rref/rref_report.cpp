#include "rref/rref_report.h"

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <exception>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "backend/base/log.h"
#include "backend/serve/signals.h"
#include "rref/context_view.h"
#include "rref/own_requests.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using HolderNames = std::unordered_map<GlobalId, std::string, GlobalIdHash>;

std::string nameOf(rpc::RpcAgent& agent, WorkerId id) {
  try {
    return agent.getWorkerInfo(static_cast<rpc::worker_id_t>(id)).name_;
  } catch (const std::exception&) { // it has left
    return "worker " + std::to_string(id);
  }
}

/// Those whose holders have told of themselves: who created the RRef, and who got it from another user.
HolderNames toldHolders(rpc::RpcAgent& agent, const ForkLedger& ledger) {
  HolderNames names;
  for (const auto& [fork, entry] : ledger.holders()) {
    names.emplace(fork, nameOf(agent, entry.holder));
  }
  return names;
}

void askForHolders(
    rpc::RpcAgent& agent, const std::vector<GlobalId>& forks, std::chrono::milliseconds patience,
    HolderNames& names) {
  const float seconds = std::chrono::duration<float>(patience).count();
  std::vector<std::pair<std::string, c10::intrusive_ptr<rpc::JitFuture>>> replies;
  for (const rpc::WorkerInfo& peer : agent.getWorkerInfos()) {
    if (peer.id_ == agent.getWorkerInfo().id_) {
      continue;
    }
    try {
      replies.emplace_back(peer.name_, agent.send(peer, holdersRequest(forks), seconds));
    } catch (const std::exception& e) { // this worker is shutting down
      log(LogLevel::info,
          "worker '" + peer.name_ + "' was not asked which forks it holds: " + e.what());
    }
  }
  for (const auto& [name, reply] : replies) {
    awaitFuture(*reply); // ends with the call's time-out
    if (reply->hasError()) {
      log(LogLevel::info,
          "worker '" + name +
              "' did not say which forks it holds: " + reply->tryRetrieveErrorMessage());
      continue;
    }
    for (const GlobalId& fork : forksIn(*reply->constValue().toCustomClass<rpc::Message>())) {
      names.emplace(fork, name);
    }
  }
}

std::vector<GlobalId> forksWithout(const HolderNames& names, const std::vector<OwnerView>& owners) {
  std::vector<GlobalId> forks;
  for (const OwnerView& owner : owners) {
    for (const GlobalId& fork : owner.forks) {
      if (fork != owner.id && !names.contains(fork)) {
        forks.push_back(fork);
      }
    }
  }
  return forks;
}

/// Fills in what the metadata says of an RRef, which is entered now if it was not known.
void addMetadata(RRefMetadata& metadata, const GlobalId& id, RRefStatus& status) {
  const auto now = RRefMetadata::Clock::now();
  const auto since = metadata.see(id, now);
  const auto entry = metadata.find(id);
  status.ageSeconds = std::chrono::duration<double>(now - since).count();
  status.site = entry ? entry->site : "";
}

std::vector<ForkStatus> forksOf(
    const OwnerView& owner, const HolderNames& names, const std::string& self) {
  std::vector<ForkStatus> forks;
  for (const GlobalId& fork : owner.forks) {
    const auto holder = names.find(fork);
    if (fork == owner.id) { // the owner's own program is creating it
      forks.push_back({toString(fork), self});
    } else {
      forks.push_back({toString(fork), holder == names.end() ? "" : holder->second});
    }
  }
  return forks;
}

} // namespace

std::vector<RRefStatus> rrefsOf(RRefService& service, std::chrono::milliseconds patience) {
  auto& context = rpc::RRefContext::getInstance();
  rpc::RpcAgent& agent = *context.agent();
  const std::string& self = agent.getWorkerInfo().name_;
  const std::vector<OwnerView> owners = ownersOf(context);
  HolderNames names = toldHolders(agent, service.ledger());
  const std::vector<GlobalId> unknown = forksWithout(names, owners);
  if (!unknown.empty()) {
    askForHolders(agent, unknown, patience, names);
  }

  std::vector<RRefStatus> all;
  std::unordered_set<GlobalId, GlobalIdHash> listed;
  for (const OwnerView& owner : owners) {
    RRefStatus status{true, toString(owner.id), self, owner.type, forksOf(owner, names, self),
                      0,    owner.hasValue,     ""};
    addMetadata(service.metadata(), owner.id, status);
    listed.insert(owner.id);
    all.push_back(std::move(status));
  }
  for (const ForkLedger::Entry& creation : service.ledger().running()) {
    if (listed.insert(creation.rref).second) {
      RRefStatus status{true, toString(creation.rref), self, "", {}, 0, false, ""};
      addMetadata(service.metadata(), creation.rref, status);
      all.push_back(std::move(status));
    }
  }
  for (const UserView& user : usersOf(context)) {
    if (service.ledger().isGone(user.ownerId) || service.isOrphan(user.fork)) {
      continue; // there is nothing of it but what the program holds
    }
    RRefStatus status{
        false,
        toString(user.id),
        nameOf(agent, user.ownerId),
        user.type,
        {{toString(user.fork), self}},
        0,
        user.confirmed,
        ""};
    addMetadata(service.metadata(), user.fork, status);
    all.push_back(std::move(status));
  }
  return all;
}

} // namespace torchwire
