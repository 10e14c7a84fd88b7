// What happens next: the simulation's only loop, and its clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "backend/base/task.h"
#include "backend/base/timer.h"

namespace torchwire::simulation {

using Time = Timer::Clock::time_point; // on the simulation's clock, which begins at 0
using Duration = Timer::Clock::duration;

/// Tasks in the order of their times, and of those in which they were added. The clock jumps from one to the next.
/// Not thread-safe.
class EventQueue {
 public:
  /// Whose task it is: a process that is paused runs none until it goes on, and one that has ended none at all.
  using Owner = uint32_t;
  static constexpr Owner kNobody = 0; // the network, or the one who tests

  Owner addOwner();
  void pause(Owner owner);
  void resume(Owner owner);
  /// What it has set goes, unrun.
  void end(Owner owner);
  bool isPaused(Owner owner) const {
    return owners_[owner].paused;
  }
  bool hasEnded(Owner owner) const {
    return owners_[owner].ended;
  }

  /// Not before now.
  void at(Time when, Owner owner, Task task);
  void after(Duration delay, Owner owner, Task task) {
    at(now_ + delay, owner, std::move(task));
  }

  /// Runs the next task; false if there is none.
  bool runNext();
  /// When that is; the end of time if there is none.
  Time next() const {
    return events_.empty() ? Time::max() : events_.front().when;
  }

  Time now() const {
    return now_;
  }
  /// Tasks that have run.
  uint64_t steps() const {
    return steps_;
  }
  /// Drops all tasks, unrun.
  void clear();

 private:
  struct Event {
    Time when;
    uint64_t number;
    Owner owner;
    Task task;
  };
  struct OwnerState {
    bool paused = false;
    bool ended = false;
    std::vector<Task> held; // while it is paused
  };

  static bool isLater(const Event& a, const Event& b) {
    return a.when != b.when ? a.when > b.when : a.number > b.number;
  }

  Time now_{};
  uint64_t steps_ = 0;
  uint64_t nextNumber_ = 0;
  std::vector<Event> events_; // a heap, the next first
  std::vector<OwnerState> owners_{1};
};

/// The timer of one process, without a thread. Not thread-safe.
class VirtualTimer final : public Timer {
 public:
  VirtualTimer(EventQueue& queue, EventQueue::Owner owner) : queue_(queue), owner_(owner) {}

  Clock::time_point now() const override {
    return queue_.now();
  }
  void at(Clock::time_point when, Task task) override;

 private:
  EventQueue& queue_;
  const EventQueue::Owner owner_;
};

} // namespace torchwire::simulation
