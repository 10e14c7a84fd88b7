#include "autograd/torch_graphs.h"

#include <torch/csrc/distributed/autograd/context/container.h>

#include <exception>
#include <set>

#include "autograd/graph_task.h"
#include "autograd/private_members.h"
#include "backend/base/lock_rank.h"

namespace torchwire {

using torch::distributed::autograd::DistAutogradContainer;

bool TorchGraphs::has(int64_t context) {
  const ForeignLock libtorchs(LockRank::autogradContainer); // taken to look it up
  try {
    DistAutogradContainer::getInstance().isValidContext(context);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::unique_ptr<LocalGraph> TorchGraphs::open(const PassId& pass, const PassOptions& options) {
  return std::make_unique<GraphTask>(
      DistAutogradContainer::getInstance().retrieveContext(pass.context), pass, options.retainGraph,
      RootEdges(), agent_.getWorkerInfo());
}

std::unique_ptr<GraphWalk> TorchGraphs::walk(int64_t context) {
  return std::make_unique<TorchGraphWalk>(
      DistAutogradContainer::getInstance().retrieveContext(context));
}

std::vector<WorkerId> TorchGraphs::knownWorkers(int64_t context) {
  if (!has(context)) {
    return {};
  }
  const auto ours = DistAutogradContainer::getInstance().retrieveContext(context);
  const auto sentTo = ours->getKnownWorkerIds();
  std::set<WorkerId> known(sentTo.begin(), sentTo.end());
  for (const auto& [message, function] : ours->recvFunctions()) {
    known.insert(function.get()->*pointerTo(RecvFromWorker()));
  }
  return {known.begin(), known.end()};
}

} // namespace torchwire
