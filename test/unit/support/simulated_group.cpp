#include "test/unit/support/simulated_group.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace torchwire {

void SimulatedWorker::start() {
  WorkerRecord record;
  record.name = settings.name;
  record.id = settings.id;
  record.incarnation = scheduler->draw(std::numeric_limits<uint64_t>::max());
  record.torchVersion = settings.torchVersion;
  record.protocolVersion = settings.protocolVersion;
  record.linkOptions = settings.linkOptions;
  membership = std::make_unique<Membership>(
      std::make_unique<ScheduledStore>(*store, *scheduler, settings.store), std::move(record),
      settings.worldSize, settings.timeout, std::make_unique<ScheduledClock>(*scheduler),
      settings.hasEnded);
  membership->agree(
      settings.secret.empty() ? std::vector<std::string>()
                              : std::vector<std::string>{settings.secret});
  roster = membership->join("tcp://192.168.100.100:" + std::to_string(10000 + settings.id));
}

SimulatedWorker::Settings rankOf(uint32_t worldSize, WorkerId id) {
  SimulatedWorker::Settings settings;
  settings.id = id;
  settings.worldSize = worldSize;
  return settings;
}

SimulatedGroup::SimulatedGroup(unsigned seed, Scheduler::Limits limits) : scheduler(seed, limits) {}

SimulatedWorker& SimulatedGroup::add(const SimulatedWorker::Settings& settings, Body body) {
  auto worker = std::make_unique<SimulatedWorker>();
  worker->settings = settings;
  if (settings.name.empty()) {
    worker->settings.name = "w" + std::to_string(settings.id);
  }
  worker->scheduler = &scheduler;
  worker->store = &store;
  scheduler.add(
      worker->settings.name,
      [this, &self = *worker, body = std::move(body)] {
        try {
          body(self);
        } catch (const std::exception& e) {
          self.error = e.what();
        } catch (const ScheduledStore::Died&) {
          self.died = true;
        }
        self.end = scheduler.now();
      },
      settings.start);
  workers.push_back(std::move(worker));
  return *workers.back();
}

void SimulatedGroup::addStatic(uint32_t count, const Body& body) {
  for (uint32_t id = 0; id < count; ++id) {
    add(rankOf(count, static_cast<WorkerId>(id)), body);
  }
}

void SimulatedGroup::throwIfOneIsGone() const {
  for (const auto& worker : workers) {
    if (worker->died || !worker->error.empty()) {
      throw std::runtime_error("cannot reach worker '" + worker->settings.name + "'");
    }
  }
}

std::vector<std::string> SimulatedGroup::errors() const {
  std::vector<std::string> all;
  for (const auto& worker : workers) {
    if (!worker->died) {
      all.push_back(worker->error);
    }
  }
  return all;
}

Roster SimulatedGroup::storedRoster() {
  const std::string name = "torchwire/roster";
  const KeyValueStore::Value bytes = StoreEntry::read(nullptr, name, store.get(name)).value;
  return Roster::decode(std::vector<char>(bytes.begin(), bytes.end()));
}

std::vector<std::string> namesIn(const Roster& roster) {
  std::vector<std::string> names;
  for (const WorkerRecord& worker : roster.workers) {
    names.push_back(worker.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

} // namespace torchwire
