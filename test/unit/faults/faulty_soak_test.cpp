// Many calls over links with all kinds of faults. TORCHWIRE_TEST_SEED repeats the run of one seed.
#include <atomic>
#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "backend/link/link_manager.h"
#include "test/unit/support/fault_stage.h"
#include "test/unit/support/seeds.h"

using namespace torchwire;
using namespace torchwire::faults;

namespace {

Rule rare(Action action, Phase phase, double probability) {
  Rule rule = ruleOf(action, phase);
  rule.probability = probability;
  rule.seconds = {Duration::Shape::uniform, 0, 0.002};
  return rule;
}

// Some of everything that leaves the process alive.
Plan trouble(unsigned seed) {
  std::vector<Rule> rules;
  for (const Phase phase : {Phase::request, Phase::inFlight, Phase::response}) {
    for (const Action action :
         {Action::drop, Action::fail, Action::delay, Action::duplicate, Action::reorder,
          Action::close}) {
      rules.push_back(rare(action, phase, action == Action::close ? 0.01 : 0.04));
    }
  }
  rules.push_back(rare(Action::refuse, Phase::connect, 0.3));
  Rule cut = ruleOf(Action::partition, Phase::request);
  cut.from = {"w0"};
  cut.to = {"w1"};
  cut.seconds.a = 0.005;
  rules.push_back(cut);
  return planOf(std::move(rules), seed);
}

// Workers that know each other, and their faults.
class Group {
 public:
  Group(MemoryNetwork::Style style, const Plan& plan) : world(style) {
    for (WorkerId id = 0; id < kWorkers; ++id) {
      faulty.push_back(std::make_unique<FaultyWorker>(recordOf(id).name, plan));
      contexts_.push_back(
          std::make_unique<FaultyContext>(
              std::make_unique<BorrowedContext>(world.network.context(recordOf(id).address)),
              faulty.back()->injector, world.timer));
      WorkerSettings settings;
      settings.context = contexts_.back().get();
      workers.push_back(std::make_unique<MemoryWorker>(world, id, settings));
    }
    startTogether(workers);
  }
  ~Group() {
    world.timer.stop(); // its tasks use the contexts
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void setPlan(const Plan& plan) {
    for (const auto& worker : faulty) {
      worker->injector->setPlan(plan);
    }
  }

  // Sends until a frame has arrived: a link may be broken without its users knowing yet.
  bool trafficFlows(MemoryWorker& from, MemoryWorker& to) {
    const std::string text = "healed " + from.record().name;
    const auto arrived = [&] {
      const auto texts = to.texts();
      return std::find(texts.begin(), texts.end(), text) != texts.end();
    };
    for (int attempt = 0; attempt < 20 && !arrived(); ++attempt) {
      const CallbackNote& note = from.send(to, text);
      if (!world.network.deliverUntil([&] { return note.called(); })) {
        return false;
      }
      if (note.succeeded()) {
        world.network.deliverUntil(
            [&] { return arrived() || from.stateOf(to) != PeerState::connected; });
      }
    }
    return arrived();
  }

  void checkHealed() {
    setPlan(planOf({}));
    CHECK(world.network.deliverUntil([&] { return world.ledger.allCalled(); }));
    for (const auto& from : workers) {
      for (const auto& to : workers) {
        if (from != to) {
          CHECK(trafficFlows(*from, *to));
        }
      }
    }
  }

  static constexpr WorkerId kWorkers = 2;
  World world;
  std::vector<std::unique_ptr<FaultyWorker>> faulty;

 private:
  std::vector<std::unique_ptr<FaultyContext>> contexts_;

 public:
  std::vector<std::unique_ptr<MemoryWorker>> workers;
};

} // namespace

TEST_CASE("two link managers get over all faults, in any order of events", "[faulty_soak]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto choose = [&](size_t options) { return static_cast<size_t>(random()) % options; };
    Group group(MemoryNetwork::Style::pumped, trouble(seed));
    for (int i = 0; i < 150; ++i) {
      const size_t from = random() % 2;
      group.workers[from]->send(*group.workers[1 - from], std::to_string(i));
      for (size_t steps = random() % 6; steps > 0; --steps) {
        group.world.network.deliverOne(choose);
      }
    }
    group.checkHealed();
  }
}

TEST_CASE("a refused dial is tried again", "[faulty_soak]") {
  Rule rule = ruleOf(Action::refuse, Phase::connect);
  rule.nth = {1, 2};
  Group group(MemoryNetwork::Style::threaded, planOf({rule}));
  const CallbackNote& note = group.workers[0]->send(*group.workers[1], "1");
  CHECK(group.world.network.deliverUntil([&] { return note.called(); }));
  CHECK(note.succeeded());
  CHECK(group.faulty[0]->log->entries().size() == 2);
}

TEST_CASE("dials that are always refused fail as if nobody listened", "[faulty_soak]") {
  Group group(MemoryNetwork::Style::threaded, planOf({ruleOf(Action::refuse, Phase::connect)}));
  const CallbackNote& note = group.workers[0]->send(*group.workers[1], "1");
  CHECK(group.world.network.deliverUntil([&] { return note.called(); }));
  CHECK(note.error().code() == ErrorCode::unreachable);
  CHECK_THAT(note.error().message(), Catch::Contains("connection refused (injected"));
}

TEST_CASE("a partition holds a handshake up", "[faulty_soak]") {
  Rule rule = ruleOf(Action::partition, Phase::request);
  rule.seconds.a = 1000;
  Group group(MemoryNetwork::Style::threaded, planOf({rule}));
  const CallbackNote& note = group.workers[0]->send(*group.workers[1], "1");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(note.called());
  CHECK(group.faulty[0]->log->entries().empty());
  group.setPlan(planOf({}));
  CHECK(group.world.network.deliverUntil([&] { return note.succeeded(); }));
}

TEST_CASE("plans may change while many threads send", "[faulty_soak]") {
  for (const unsigned seed : seeds(5)) {
    CAPTURE(seed);
    Group group(MemoryNetwork::Style::threaded, trouble(seed));
    std::atomic<bool> stop{false};
    std::thread planner([&] {
      for (unsigned i = 0; !stop; ++i) {
        group.setPlan(i % 3 == 0 ? planOf({}) : trouble(seed + i));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    std::vector<std::thread> senders;
    for (unsigned t = 0; t < 4; ++t) {
      senders.emplace_back([&group, t] {
        for (unsigned i = 0; i < 100; ++i) {
          group.workers[t % 2]->send(*group.workers[1 - t % 2], std::to_string(i));
        }
      });
    }
    for (std::thread& sender : senders) {
      sender.join();
    }
    stop = true;
    planner.join();
    group.checkHealed();
  }
}

TEST_CASE("calls on each kind of link are called back whatever happens", "[faulty_soak]") {
  for (const StageKind kind : kStageKinds) {
    for (const unsigned seed : seeds(5)) {
      CAPTURE(nameOf(kind), seed);
      FaultStage stage(kind, planOf({}));
      Plan plan = trouble(seed);
      for (Rule& rule : plan.rules) {
        rule.from.clear();
        rule.to.clear();
      }
      stage.setPlan(plan);
      std::vector<std::thread> senders;
      for (unsigned t = 0; t < (kind == StageKind::synchronous ? 1 : 3); ++t) {
        senders.emplace_back([&stage, t] {
          for (uint64_t i = 0; i < 100; ++i) {
            stage.send(callFrame(FrameKind::request, 0x100 + t, i + 1000 * t, std::to_string(i)));
          }
        });
      }
      for (unsigned i = 0; i < 5; ++i) {
        plan.seed += 100;
        stage.setPlan(plan);
      }
      for (std::thread& sender : senders) {
        sender.join();
      }
      stage.setPlan(planOf({}));
      CHECK(stage.until([&] { return stage.world.ledger.allCalled(); }));
    }
  }
}
