#include "backend/agent/failed_start.h"

#include <torch/version.h>

#include <chrono>
#include <memory>
#include <utility>

#include "backend/agent/torch_store.h"
#include "backend/base/random.h"
#include "backend/membership/bounded_store.h"
#include "backend/membership/membership.h"
#include "backend/serve/signals.h"
#include "backend/transport/processes.h"
#include "backend/wire/frame.h"

namespace torchwire {
namespace {

// The program waits for it, to see its error.
constexpr std::chrono::seconds kTellingPatience{2};

std::string torchVersion() {
  const std::string full = TORCH_VERSION;
  return full.substr(0, full.find('+')); // +cpu and +cu130 understand each other
}

Membership membershipWithoutAgent(
    const c10::intrusive_ptr<c10d::Store>& store, const WorkerRecord& self, uint32_t worldSize,
    std::shared_ptr<ThreadPool> thread) {
  return Membership(
      std::make_unique<BoundedStore>(
          std::make_unique<TorchStore>(store), kTellingPatience, checkSignals, std::move(thread)),
      self, worldSize, kTellingPatience, std::make_unique<SystemClock>(checkSignals),
      [](const WorkerRecord& worker, bool) { return isOver(presenceOf(worker.process)); });
}

} // namespace

WorkerRecord ownRecord(std::string name, WorkerId id) {
  WorkerRecord self;
  self.name = std::move(name);
  self.id = id;
  self.incarnation = randomNumber();
  self.torchVersion = torchVersion();
  self.protocolVersion = kProtocolVersion;
  self.process = ProcessIdentity::ofThisProcess();
  return self;
}

std::string describeFailedStart(const WorkerRecord& worker, const std::string& reason) {
  return worker.describe() + " could not start: " + reason.substr(0, reason.find('\n'));
}

void announceStart(
    const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, WorkerId id,
    uint32_t worldSize, std::shared_ptr<ThreadPool> thread) {
  try {
    membershipWithoutAgent(store, ownRecord(name, id), worldSize, std::move(thread)).announce();
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception&) {
    // The agent asks the store next, and says what is wrong with it.
  }
}

void tellOfFailedStart(
    const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, WorkerId id,
    uint32_t worldSize, const std::string& reason, std::shared_ptr<ThreadPool> thread) {
  const WorkerRecord self = ownRecord(name, id);
  membershipWithoutAgent(store, self, worldSize, std::move(thread))
      .giveUpStart(describeFailedStart(self, reason));
}

} // namespace torchwire
