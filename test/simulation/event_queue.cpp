#include "test/simulation/event_queue.h"

#include <algorithm>
#include <utility>

#include "backend/base/thread_role.h"

namespace torchwire::simulation {

EventQueue::Owner EventQueue::addOwner() {
  owners_.emplace_back();
  return static_cast<Owner>(owners_.size() - 1);
}

void EventQueue::pause(Owner owner) {
  owners_[owner].paused = true;
}

void EventQueue::resume(Owner owner) {
  owners_[owner].paused = false;
  auto held = std::exchange(owners_[owner].held, {});
  for (Task& task : held) {
    at(now_, owner, std::move(task));
  }
}

void EventQueue::end(Owner owner) {
  owners_[owner].ended = true;
  owners_[owner].held.clear();
}

void EventQueue::at(Time when, Owner owner, Task task) {
  events_.push_back({std::max(when, now_), nextNumber_++, owner, std::move(task)});
  std::push_heap(events_.begin(), events_.end(), isLater);
}

bool EventQueue::runNext() {
  if (events_.empty()) {
    return false;
  }
  std::pop_heap(events_.begin(), events_.end(), isLater);
  Event event = std::move(events_.back());
  events_.pop_back();
  now_ = event.when;
  OwnerState& owner = owners_[event.owner];
  if (owner.ended) {
    return true;
  }
  if (owner.paused) {
    owner.held.push_back(std::move(event.task));
    return true;
  }
  ++steps_;
  event.task();
  return true;
}

void EventQueue::clear() {
  for (OwnerState& owner : owners_) {
    owner.held.clear();
  }
  while (!events_.empty()) { // what a task holds may set others as it goes
    const auto dropped = std::exchange(events_, {});
  }
}

void VirtualTimer::at(Clock::time_point when, Task task) {
  queue_.at(when, owner_, [task = std::move(task)]() mutable {
    const DeliverScope scope;
    task();
    task = Task();
  });
}

} // namespace torchwire::simulation
