#include "backend/faults/injector.h"

#include <chrono>
#include <stdexcept>
#include <utility>

namespace torchwire::faults {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

} // namespace

Injector::Injector(
    std::string self, Plan plan, std::shared_ptr<FaultLog> log, std::shared_ptr<Process> process)
    : self_(std::move(self)), log_(std::move(log)), process_(std::move(process)) {
  setPlan(std::move(plan));
}

void Injector::setPlan(Plan plan) {
  if (const auto objection = objectionTo(plan)) {
    throw std::invalid_argument(*objection);
  }
  Partitions partitions(self_, plan, Partitions::Clock::now());
  const uint64_t revision = plan.revision;
  FaultSchedule schedule(std::move(plan));
  std::vector<std::weak_ptr<PlanWatcher>> watchers;
  {
    MutexLock lock(mutex_);
    revision_ = revision;
    std::swap(schedule_, schedule); // the former is destroyed unlocked
    std::swap(partitions_, partitions);
    readsContent_.store(schedule_.readsContent(), std::memory_order_release);
    quiet_.store(schedule_.empty(), std::memory_order_release);
    watchers = watchers_;
    ++telling_;
  }
  for (const auto& watcher : watchers) {
    if (const auto told = watcher.lock()) {
      told->planChanged();
    }
  }
  MutexLock lock(mutex_);
  --telling_;
  told_.notify_all();
}

void Injector::awaitWatchers() {
  MutexLock lock(mutex_);
  while (telling_ > 0) {
    told_.wait(lock);
  }
}

uint64_t Injector::revision() const {
  MutexLock lock(mutex_);
  return revision_;
}

void Injector::watch(std::weak_ptr<PlanWatcher> watcher) {
  MutexLock lock(mutex_);
  std::erase_if(watchers_, [](const auto& weak) { return weak.expired(); });
  watchers_.push_back(std::move(watcher));
}

std::optional<Entry> Injector::decide(FaultPoint& at) {
  std::optional<Entry> fault = draw(at);
  if (!fault) {
    return std::nullopt;
  }
  inject(*fault);
  const bool isDone = fault->action == Action::pause || fault->action == Action::kill;
  return isDone ? std::nullopt : std::move(fault);
}

std::optional<Entry> Injector::draw(FaultPoint& at) {
  if (quiet()) {
    return std::nullopt;
  }
  MutexLock lock(mutex_);
  return schedule_.next(at);
}

void Injector::inject(Entry entry) {
  entry.time = now();
  entry.worker = self_;
  log_->add(entry);
  if (entry.action == Action::pause) {
    process_->pause(entry.seconds);
  } else if (entry.action == Action::kill) {
    process_->kill();
  }
}

std::optional<Cut> Injector::cut(const std::string& peer) const {
  if (quiet()) {
    return std::nullopt;
  }
  const auto time = Partitions::Clock::now();
  MutexLock lock(mutex_);
  return partitions_.between(peer, time);
}

void Injector::logHeld(const Cut& cut, const FaultPoint& at) {
  Entry entry = at.entry(revision(), cut.rule, Action::partition);
  entry.time = now();
  entry.worker = self_;
  entry.seconds = std::chrono::duration<double>(cut.until - Partitions::Clock::now()).count();
  log_->add(entry);
}

} // namespace torchwire::faults
