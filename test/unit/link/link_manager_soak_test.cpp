// Many frames over links that break all the time. TORCHWIRE_TEST_SEED repeats the run of one seed.
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "backend/link/link_manager.h"
#include "test/unit/support/memory_worker.h"
#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_faulty_link.h"

using namespace torchwire;
using Style = MemoryNetwork::Style;

namespace {

constexpr WorkerId kWorkers = 3;

SimulatedFaultPlan planOf(unsigned seed, WorkerId id) {
  SimulatedFaultPlan plan;
  plan.seed = seed * 10 + static_cast<unsigned>(id);
  plan.refuseDial = 0.2;
  plan.breakAtSend = 0.02;
  plan.loseAtSend = 0.02;
  plan.delaySend = 0.05;
  plan.maxDelay = std::chrono::microseconds(500);
  return plan;
}

// Some workers that know each other, on a network full of faults.
class FaultyGroup {
 public:
  FaultyGroup(Style style, unsigned seed) : world(style) {
    for (WorkerId id = 0; id < kWorkers; ++id) {
      contexts_.push_back(
          std::make_unique<SimulatedFaultyContext>(
              world.network.context(recordOf(id).address), world.timer, planOf(seed, id)));
      WorkerSettings settings;
      settings.context = contexts_.back().get();
      workers.push_back(std::make_unique<MemoryWorker>(world, id, settings));
    }
    startTogether(workers);
  }
  ~FaultyGroup() {
    world.timer.stop(); // its tasks use the faulty contexts
  }
  FaultyGroup(const FaultyGroup&) = delete;
  FaultyGroup& operator=(const FaultyGroup&) = delete;

  void heal() {
    for (const auto& context : contexts_) {
      context->heal();
    }
  }

  // Sends until a frame has arrived: a link may be broken already without its users knowing.
  bool trafficFlows(MemoryWorker& from, MemoryWorker& to) {
    const std::string text = "healed " + from.record().name;
    for (int attempt = 0; attempt < 20; ++attempt) {
      const CallbackNote& note = from.send(to, text);
      if (!world.network.deliverUntil([&] { return note.called(); })) {
        return false;
      }
      const auto decided = [&] {
        return hasArrived(to, text) || from.stateOf(to) != PeerState::connected;
      };
      if (note.succeeded() && world.network.deliverUntil(decided) && hasArrived(to, text)) {
        return true;
      }
    }
    return false;
  }

 private:
  static bool hasArrived(const MemoryWorker& at, const std::string& text) {
    for (const MemoryWorker::Arrival& arrival : at.arrivals()) {
      if (arrival.text == text) {
        return true;
      }
    }
    return false;
  }

 public:
  World world;

 private:
  std::vector<std::unique_ptr<SimulatedFaultyContext>> contexts_;

 public:
  std::vector<std::unique_ptr<MemoryWorker>> workers;
};

void checkNothingCameTwice(const MemoryWorker& worker) {
  std::set<std::string> seen;
  for (const MemoryWorker::Arrival& arrival : worker.arrivals()) {
    if (arrival.text.rfind("healed", 0) != 0) {
      const bool first = seen.insert(arrival.text).second;
      CHECK(first);
    }
  }
}

void checkHealed(FaultyGroup& group) {
  group.heal();
  CHECK(group.world.network.deliverUntil([&] { return group.world.ledger.allCalled(); }));
  for (const auto& from : group.workers) {
    for (const auto& to : group.workers) {
      if (from != to) {
        CHECK(group.trafficFlows(*from, *to));
      }
    }
  }
  for (const auto& worker : group.workers) {
    checkNothingCameTwice(*worker);
  }
}

} // namespace

TEST_CASE(
    "every send is called back once over links that break, in any order of events",
    "[link_manager_soak]") {
  for (const unsigned seed : seeds(40)) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto choose = [&](size_t options) { return static_cast<size_t>(random()) % options; };
    FaultyGroup group(Style::pumped, seed);
    for (int i = 0; i < 150; ++i) {
      MemoryWorker& from = *group.workers[random() % kWorkers];
      MemoryWorker& to = *group.workers[random() % kWorkers];
      if (&from != &to) {
        from.send(to, std::to_string(i));
      }
      for (size_t steps = random() % 6; steps > 0; --steps) {
        group.world.network.deliverOne(choose);
      }
    }
    checkHealed(group);
  }
}

TEST_CASE(
    "every send of many threads is called back once over links that break", "[link_manager_soak]") {
  for (const unsigned seed : seeds(10)) {
    CAPTURE(seed);
    FaultyGroup group(Style::threaded, seed);
    std::vector<std::thread> senders;
    for (unsigned t = 0; t < 2 * kWorkers; ++t) {
      senders.emplace_back([&group, t, seed] {
        std::mt19937 random(seed * 100 + t);
        MemoryWorker& from = *group.workers[t % kWorkers];
        for (unsigned i = 0; i < 100; ++i) {
          MemoryWorker& to = *group.workers[(t + 1 + random() % (kWorkers - 1)) % kWorkers];
          const std::string text = std::to_string(t) + "." + std::to_string(i);
          switch (random() % 8) {
            case 0:
              from.sendIfConnected(to, text);
              break;
            case 1:
              from.connect(to);
              break;
            default:
              from.send(to, text);
          }
        }
      });
    }
    for (std::thread& sender : senders) {
      sender.join();
    }
    checkHealed(group);
  }
}

TEST_CASE("workers may leave while others send to them", "[link_manager_soak]") {
  for (const unsigned seed : seeds(10)) {
    CAPTURE(seed);
    FaultyGroup group(Style::threaded, seed);
    std::atomic<bool> stop{false};
    std::vector<std::thread> senders;
    for (size_t t = 0; t < kWorkers; ++t) {
      senders.emplace_back([&group, &stop, t] {
        for (int i = 0; i < 200 && !stop; ++i) {
          group.workers[t]->send(*group.workers[(t + 1) % kWorkers], "text");
        }
      });
    }
    std::vector<std::thread> leavers;
    for (const auto& worker : group.workers) {
      leavers.emplace_back([&worker] { worker->links().leave(std::chrono::milliseconds(20)); });
    }
    for (std::thread& leaver : leavers) {
      leaver.join();
    }
    stop = true;
    for (std::thread& sender : senders) {
      sender.join();
    }
    CHECK(group.world.network.deliverUntil([&] { return group.world.ledger.allCalled(); }));
  }
}
