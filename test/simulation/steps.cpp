// Simulation: what a plan says, step by step.
#include <utility>

#include "test/simulation/simulation.h"

namespace torchwire::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kMoment{1500};
// So much later than a cut ends arrives what was sent during it.
constexpr milliseconds kResent{400};

} // namespace

void Simulation::take(const Step& step) {
  world_.note([&] { return "--- " + step.describe(); });
  if (isFault(step.kind)) {
    if (disturb(step)) {
      ++faults_;
      plantBugs(step);
    }
    return;
  }
  const auto& worker = workers_[static_cast<size_t>(step.a)];
  if (worker) { // if it stands still, it does so later
    worker->later(Duration(0), [this, &step, one = worker.get()] { operate(*one, step); });
  }
}

void Simulation::operate(Worker& worker, const Step& step) {
  const bool toSelf = step.b == step.a;
  if (worker.isLeaving() || (!toSelf && !worker.knows(step.b))) {
    return;
  }
  switch (step.kind) {
    case StepKind::call:
    case StepKind::endlessCall:
      worker.call({step.b, -1, 0, {step.time}});
      break;
    case StepKind::quickCall:
      worker.call({step.b, -1, 0, {step.time, false}});
      break;
    case StepKind::nestedCall:
      worker.call({step.b, step.c, 0, {step.time}});
      break;
    case StepKind::largeCall:
      worker.call({step.b, -1, static_cast<uint32_t>(step.choice % 3000), {step.time}});
      break;
    case StepKind::create:
      worker.rrefs().create(step.b);
      break;
    case StepKind::pass:
      worker.rrefs().pass(
          step.choice, step.b, step.choice % 3 != 0, [&](WorkerId owner, const GlobalId& rref) {
            const auto& receiver = workers_[static_cast<size_t>(step.b)];
            if (!receiver || owner != step.b) {
              return receiver && receiver->knows(owner);
            }
            // The owner has let it go if its creator died just when it handed it on (docs/reliability.md).
            return receiver->rrefs().owned().contains(rref);
          });
      break;
    case StepKind::drop:
      worker.rrefs().drop(step.choice);
      break;
    case StepKind::openContext:
      worker.contexts().open();
      break;
    case StepKind::contextCall:
      worker.contexts().call(step.choice, step.b, step.choice % 2 == 0 ? step.c : -1);
      break;
    case StepKind::closeContext:
      worker.contexts().close(step.choice);
      break;
    default:
      break;
  }
}

// ---- faults -------------------------------------------------------------------------------------

/// Whether it met something.
bool Simulation::disturb(const Step& step) {
  switch (step.kind) {
    case StepKind::breakLink:
      world_.oracle.disturb(step.a, step.b, kMoment);
      return world_.network.breakLinks(
                 step.a, step.b, static_cast<Network::Break>(step.choice % 3)) > 0;
    case StepKind::cut:
      return cut(step);
    case StepKind::isolate:
      return isolate(step);
    case StepKind::slow:
      return slowDown(step);
    case StepKind::damage:
      world_.network.damageNext(step.a, step.b);
      return true;
    case StepKind::refuse:
      world_.network.refuseDials(step.a, step.b, static_cast<int>(1 + step.choice % 3));
      return true;
    case StepKind::pause:
      return pause(step);
    case StepKind::kill:
      return kill(step.a);
    case StepKind::start: // or the next that can be
      for (Slot i = 0; i < plan_.settings.slots; ++i) {
        if (start((step.a + i) % plan_.settings.slots)) {
          return true;
        }
      }
      return false;
    case StepKind::leave:
      return leave(step.a);
    case StepKind::storeFails: {
      const StoreFailures failures{static_cast<int>(1 + step.choice % 3), step.choice % 2 == 0};
      const auto slot = static_cast<size_t>(step.a);
      if (workers_[slot]) {
        workers_[slot]->failStore(failures);
      } else {
        storeFailures_[slot] = failures;
      }
      return true;
    }
    default:
      return false;
  }
}

bool Simulation::cut(const Step& step) {
  world_.oracle.disturb(step.a, step.b, step.time + kResent);
  block(step.a, step.b, step.time);
  if (step.choice % 2 == 0) {
    block(step.b, step.a, step.time);
  }
  return true;
}

bool Simulation::isolate(const Step& step) {
  for (Slot other = 0; other < plan_.settings.slots; ++other) {
    if (other != step.a) {
      world_.oracle.disturb(step.a, other, step.time + kResent);
      block(step.a, other, step.time);
      block(other, step.a, step.time);
    }
  }
  return true;
}

void Simulation::block(Slot from, Slot to, milliseconds time) {
  world_.network.block(from, to);
  world_.queue.after(time, EventQueue::kNobody, [this, from, to] {
    if (!healed_) {
      world_.network.unblock(from, to);
    }
  });
}

bool Simulation::slowDown(const Step& step) {
  world_.network.slowDown(step.a, step.b, microseconds(step.choice % 150000));
  world_.queue.after(step.time, EventQueue::kNobody, [this, &step] {
    world_.network.slowDown(step.a, step.b, Duration(0));
  });
  return true;
}

bool Simulation::pause(const Step& step) {
  const auto slot = static_cast<size_t>(step.a);
  if (!workers_[slot] || world_.queue.isPaused(workers_[slot]->owner())) {
    return false;
  }
  const EventQueue::Owner owner = workers_[slot]->owner();
  world_.oracle.disturb(step.a, step.a, step.time);
  world_.queue.pause(owner);
  world_.queue.after(step.time, EventQueue::kNobody, [this, owner] {
    if (!healed_) {
      world_.queue.resume(owner);
    }
  });
  return true;
}

bool Simulation::kill(Slot slot) {
  if (!workers_[static_cast<size_t>(slot)]) {
    return false;
  }
  end(slot, false);
  return true;
}

void Simulation::end(Slot slot, bool inOrder) {
  std::unique_ptr<Worker> ending = std::move(workers_[static_cast<size_t>(slot)]);
  const WorkerRecord record = ending->record();
  world_.oracle.processEnds(ending->number(), inOrder);
  notRemoved_.insert(ending->notRemoved().begin(), ending->notRemoved().end());
  const auto& unreached = ending->contexts().unreached();
  unreached_.insert(unreached.begin(), unreached.end());
  ending.reset();
  for (Worker* other : living()) {
    other->processEnded(record);
  }
}

bool Simulation::start(Slot slot) {
  const auto index = static_cast<size_t>(slot);
  if (workers_[index]) {
    return false;
  }
  const size_t number = world_.oracle.begins(slot);
  const std::string port = std::to_string(world_.settings.keepsPorts ? size_t{1} : number);
  auto worker = std::make_unique<Worker>(
      world_, number, "sim://" + std::to_string(slot) + ":" + port,
      [this, slot, number](bool inOrder) {
        const auto& now = workers_[static_cast<size_t>(slot)];
        if (now && now->number() == number) {
          end(slot, inOrder);
        }
      });
  worker->failStore(std::exchange(storeFailures_[index], {}));
  workers_[index] = std::move(worker);
  if (!workers_[index]->start()) {
    notRemoved_.insert(workers_[index]->record().incarnation); // it may have got as far as the list
    end(slot, false);
  }
  return true;
}

bool Simulation::leave(Slot slot) {
  Worker* worker = workers_[static_cast<size_t>(slot)].get();
  if (worker == nullptr || worker->isLeaving()) {
    return false;
  }
  worker->later(Duration(0), [worker] {
    if (!worker->isLeaving()) {
      worker->leave();
    }
  });
  return true;
}

void Simulation::plantBugs(const Step& step) {
  if (planted(Bug::losesFrame) && step.kind == StepKind::breakLink) {
    world_.network.swallowNext(step.a, step.b);
  }
}

} // namespace torchwire::simulation
