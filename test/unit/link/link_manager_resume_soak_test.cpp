// Sessions over links that break all the time: nothing is lost, nothing comes twice, and of what fails it is known how far
// it came. TORCHWIRE_TEST_SEED repeats the run of one seed, TORCHWIRE_TEST_SEEDS=5000 takes so many.
#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

#include "backend/link/link_manager.h"
#include "test/unit/support/memory_worker.h"
#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_faulty_link.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Style = MemoryNetwork::Style;

namespace {

constexpr milliseconds kLong{3600 * 1000};

struct Faults {
  double often = 0.02; // of what breaks links
  double damage = 0;
  milliseconds sessionTimeout = kLong;
  size_t sessionBytes = 1000; // some ten frames
};

// Workers that answer each request "q FROM TO N" by "r FROM TO N". Each request's call id is N.
class SessionGroup {
 public:
  SessionGroup(Style style, unsigned seed, WorkerId count, const Faults& faults) : world(style) {
    for (WorkerId id = 0; id < count; ++id) {
      SimulatedFaultPlan plan;
      plan.seed = seed * 10 + static_cast<unsigned>(id);
      plan.refuseDial = 0.1;
      plan.breakAtSend = plan.loseAtSend = faults.often;
      plan.damageSend = faults.damage;
      plan.delaySend = 0.05;
      plan.maxDelay = std::chrono::microseconds(300);
      contexts_.push_back(
          std::make_unique<SimulatedFaultyContext>(
              world.network.context(recordOf(id).address), world.timer, plan));
      WorkerSettings settings;
      settings.context = contexts_.back().get();
      settings.limits = sessionLimits(faults.sessionTimeout);
      settings.limits.attempts = 100; // of a first dial
      settings.limits.sessionBytes = faults.sessionBytes;
      settings.onFrame = [this, id](const std::string& text) { answer(id, text); };
      workers.push_back(std::make_unique<MemoryWorker>(world, id, settings));
    }
    startTogether(workers);
  }
  ~SessionGroup() {
    world.timer.stop(); // its tasks use the faulty contexts
  }
  SessionGroup(const SessionGroup&) = delete;
  SessionGroup& operator=(const SessionGroup&) = delete;

  const CallbackNote& request(WorkerId from, WorkerId to, uint64_t id) {
    const std::string text =
        "q " + std::to_string(from) + " " + std::to_string(to) + " " + std::to_string(id);
    CallbackNote& note = world.ledger.note(text);
    OutgoingFrame frame = textFrame(text);
    setCallId(frame, id);
    workers[static_cast<size_t>(from)]->links().send(
        to, std::move(frame), CallbackLedger::expect(note));
    return note;
  }
  void heal() {
    for (const auto& context : contexts_) {
      context->heal();
    }
  }
  size_t arrived() const {
    size_t all = 0;
    for (const auto& worker : workers) {
      all += worker->arrivals().size();
    }
    return all;
  }
  size_t losses() const {
    size_t all = 0;
    for (const auto& worker : workers) {
      all += worker->losses().size();
    }
    return all;
  }
  /// How often each text has come, wherever.
  std::map<std::string, int> counts() const {
    std::map<std::string, int> counts;
    for (const auto& worker : workers) {
      for (const std::string& text : worker->texts()) {
        ++counts[text];
      }
    }
    return counts;
  }

 private:
  void answer(WorkerId at, const std::string& text) {
    std::istringstream in(text);
    std::string kind;
    WorkerId from = 0;
    in >> kind >> from;
    if (kind == "q") {
      workers[static_cast<size_t>(at)]->links().sendIfConnected(
          from, textFrame("r" + text.substr(1)), [](const Error&) {});
    }
  }

 public:
  World world;

 private:
  std::vector<std::unique_ptr<SimulatedFaultyContext>> contexts_;

 public:
  std::vector<std::unique_ptr<MemoryWorker>> workers;
};

void checkAllCameOnce(SessionGroup& group, size_t requests) {
  CHECK(group.world.network.deliverUntil([&] { return group.arrived() >= 2 * requests; }));
  group.world.network.deliverAll();
  const auto counts = group.counts();
  CHECK(counts.size() == 2 * requests);
  for (const auto& [text, count] : counts) {
    CAPTURE(text);
    CHECK(count == 1);
  }
  CHECK(group.losses() == 0);
}

// What each side may conclude, against what has really come.
struct Account {
  void check(const SessionGroup& group) const {
    CallIds received;
    for (const auto& worker : group.workers) {
      for (const MemoryWorker::Loss& loss : worker->losses()) {
        received.insert(loss.received.begin(), loss.received.end());
      }
    }
    const auto counts = group.counts();
    for (const auto& [id, note] : notes) {
      CAPTURE(note->what());
      const auto it = counts.find(note->what());
      const int came = it == counts.end() ? 0 : it->second;
      CHECK(came <= 1);
      if (note->error()) {
        CHECK(came == 0); // not sent
      } else if (received.contains(id)) {
        CHECK(came == 1);
      }
    }
  }

  std::map<uint64_t, const CallbackNote*> notes;
};

} // namespace

TEST_CASE(
    "what is sent in a session comes once, whatever breaks and in any order of events",
    "[link_manager_resume_soak]") {
  constexpr size_t kRequests = 60;
  for (const unsigned seed : seeds(150)) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto choose = [&](size_t options) { return static_cast<size_t>(random()) % options; };
    Faults faults;
    faults.often = random() % 3 == 0 ? 0.1 : 0.02;
    faults.sessionBytes = random() % 2 == 0 ? 300 : 100000;
    const WorkerId workers = random() % 2 == 0 ? 2 : 3;
    SessionGroup group(Style::pumped, seed, workers, faults);
    for (uint64_t id = 1; id <= kRequests; ++id) {
      const auto from = static_cast<WorkerId>(random() % static_cast<unsigned>(workers));
      group.request(from, static_cast<WorkerId>((from + 1) % workers), id);
      for (size_t steps = random() % 6; steps > 0; --steps) {
        group.world.network.deliverOne(choose);
      }
      if (random() % 20 == 0) {
        group.world.network.cut();
      }
    }
    group.heal();
    checkAllCameOnce(group, kRequests);
  }
}

TEST_CASE(
    "what many threads send in a session comes once, while links are cut",
    "[link_manager_resume_soak]") {
  constexpr WorkerId kWorkers = 3;
  constexpr unsigned kEach = 100;
  for (const unsigned seed : seeds(15)) {
    CAPTURE(seed);
    SessionGroup group(Style::threaded, seed, kWorkers, {});
    std::vector<std::thread> senders;
    for (unsigned t = 0; t < 2 * kWorkers; ++t) {
      senders.emplace_back([&group, t, seed] {
        std::mt19937 random(seed * 100 + t);
        const auto from = static_cast<WorkerId>(t % kWorkers);
        for (unsigned i = 0; i < kEach; ++i) {
          const auto to = static_cast<WorkerId>((from + 1 + random() % (kWorkers - 1)) % kWorkers);
          group.request(from, to, 1 + t * kEach + i);
          if (random() % 50 == 0) {
            group.world.network.cut();
          }
        }
      });
    }
    for (std::thread& sender : senders) {
      sender.join();
    }
    // They are quicker than the links, so most of it is still to come.
    CHECK(group.world.network.deliverUntil(
        [&] { return group.arrived() >= size_t{2} * kWorkers * kEach; }));
    group.heal();
    checkAllCameOnce(group, 2 * kWorkers * kEach);
  }
}

TEST_CASE("damaged frames are sent again", "[link_manager_resume_soak]") {
  constexpr uint64_t kRequests = 40;
  size_t resent = 0;
  for (const unsigned seed : seeds(60)) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto choose = [&](size_t options) { return static_cast<size_t>(random()) % options; };
    Faults faults;
    faults.often = 0;
    faults.damage =
        0.03; // so seldom that the same frame is hardly ever hit twice: then the session would end
    SessionGroup group(Style::pumped, seed, 2, faults);
    Account account;
    for (uint64_t id = 1; id <= kRequests; ++id) {
      const auto from = static_cast<WorkerId>(random() % 2);
      account.notes[id] = &group.request(from, 1 - from, id);
      for (size_t steps = random() % 6; steps > 0; --steps) {
        group.world.network.deliverOne(choose);
      }
    }
    group.heal();
    CHECK(group.world.network.deliverUntil(
        [&] { return group.losses() > 0 || group.arrived() >= 2 * kRequests; }));
    CHECK(group.world.network.deliverUntil([&] { return group.world.ledger.allCalled(); }));
    if (group.losses() == 0) {
      checkAllCameOnce(group, kRequests);
      resent += group.workers[0]->statusOf(*group.workers[1]).traffic.linksLost;
    }
  }
  CHECK(resent > 0);
}

TEST_CASE(
    "of what fails with a session it is known how far it came", "[link_manager_resume_soak]") {
  size_t losses = 0;
  for (const unsigned seed : seeds(100)) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto choose = [&](size_t options) { return static_cast<size_t>(random()) % options; };
    Faults faults;
    faults.often = 0.05;
    faults.sessionTimeout = milliseconds(1 + random() % 8); // about as long as a redial takes
    faults.sessionBytes = random() % 2 == 0 ? 300 : 100000;
    SessionGroup group(Style::pumped, seed, 2, faults);
    Account account;
    for (uint64_t id = 1; id <= 60; ++id) {
      const auto from = static_cast<WorkerId>(random() % 2);
      account.notes[id] = &group.request(from, 1 - from, id);
      for (size_t steps = random() % 6; steps > 0; --steps) {
        group.world.network.deliverOne(choose);
      }
      if (random() % 10 == 0) {
        group.world.network.cut();
      }
    }
    group.heal();
    CHECK(group.world.network.deliverUntil([&] { return group.world.ledger.allCalled(); }));
    // The last requests: they come after all that is still under way on their sessions, or end these.
    for (WorkerId from = 0; from < 2; ++from) {
      bool done = false;
      for (uint64_t id = 1000 + static_cast<uint64_t>(from); !done && id < 1000000; id += 2) {
        const size_t before = group.losses();
        const CallbackNote& note = group.request(from, 1 - from, id);
        account.notes[id] = &note;
        const auto came = [&] { return group.counts().contains(note.what()); };
        CHECK(group.world.network.deliverUntil(
            [&] { return note.error() || group.losses() > before || came(); }));
        done = came();
        std::this_thread::yield(); // to the timer's, which may be ending a session
      }
      CHECK(done);
    }
    CHECK(group.world.network.deliverUntil([&] { return group.world.ledger.allCalled(); }));
    account.check(group);
    losses += group.losses();
  }
  CHECK(losses > 0);
}
