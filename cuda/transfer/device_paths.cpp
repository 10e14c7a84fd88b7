#include "cuda/transfer/device_paths.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "cuda/device_record.h"

namespace torchwire::cuda {
namespace {

constexpr const char* kLeftOut = "the option _device_paths leaves it out";

void addObjection(
    std::vector<DevicePaths::Objection>& objections, DevicePath path, const std::string& reason) {
  if (!reason.empty()) {
    objections.push_back({path, reason});
  }
}

/// In one line. Those to `ipc`, which most routes are about, do not say so.
std::string textOf(const std::vector<DevicePaths::Objection>& objections) {
  std::string text;
  for (const auto& [path, reason] : objections) {
    if (reason == text) { // what speaks against all of them is said once
      continue;
    }
    if (path != DevicePath::ipc) {
      text += (text.empty() ? "" : "; ") + std::string(nameOf(path)) + ": ";
    }
    text += reason;
  }
  return text;
}

/// Whether an option asks for a path that is not taken, and no other option says so.
bool hasUnmetWish(const std::vector<DevicePaths::Objection>& objections) {
  return std::any_of(
      objections.begin(), objections.end(), [](const DevicePaths::Objection& objection) {
        return objection.path == DevicePath::nccl && objection.reason != kLeftOut;
      });
}

} // namespace

const char* nameOf(DevicePath path) {
  switch (path) {
    case DevicePath::process:
      return "process";
    case DevicePath::ipc:
      return "ipc";
    case DevicePath::nccl:
      return "nccl";
    case DevicePath::host:
      break;
  }
  return "host";
}

bool DeviceRoute::operator<(const DeviceRoute& other) const {
  const auto key = [](const DeviceRoute& r) {
    return std::tuple(r.peer, r.from.type(), r.from.index(), r.to.type(), r.to.index());
  };
  return key(*this) < key(other);
}

DevicePath DevicePaths::choose(const DeviceRoute& route, size_t bytes) {
  if (route.peer == self_) {
    return leftOut_.contains(DevicePath::process) ? DevicePath::host : DevicePath::process;
  }
  if (bytes < kLeastBytes) {
    return DevicePath::host;
  }
  {
    MutexLock lock(mutex_);
    if (const auto found = routes_.find(route); found != routes_.end()) {
      return found->second.stage == State::works ? found->second.path : DevicePath::host;
    }
  }
  const Candidate first = candidateAfter(route, DevicePath::process, {});
  const auto stage = first.path == DevicePath::host ? State::fails : State::trying;
  uint64_t trial = 0;
  {
    MutexLock lock(mutex_);
    trial = ++lastTrial_;
    if (!routes_.emplace(route, State{stage, first.path, trial, first.objections}).second) {
      return DevicePath::host; // another thread has been as fast
    }
  }
  if (stage == State::trying) {
    hooks_.tryPath(route, first.path, trial);
  } else if (hasUnmetWish(first.objections)) {
    hooks_.fellBack(route, DevicePath::host, textOf(first.objections));
  }
  return DevicePath::host; // this tensor does not wait for the trial
}

std::optional<std::string> DevicePaths::objectionTo(
    const DeviceRoute& route, DevicePath path) const {
  auto objection = hooks_.objectionTo(route, path);
  const bool isWanted = objection != "";
  return isWanted && leftOut_.contains(path) ? kLeftOut : std::move(objection);
}

DevicePaths::Candidate DevicePaths::candidateAfter(
    const DeviceRoute& route, DevicePath path, std::vector<Objection> objections) const {
  for (const DevicePath next : {DevicePath::ipc, DevicePath::nccl}) {
    if (next <= path) {
      continue;
    }
    const auto objection = objectionTo(route, next);
    if (!objection) {
      return {next, std::move(objections)};
    }
    addObjection(objections, next, *objection);
  }
  return {DevicePath::host, std::move(objections)};
}

void DevicePaths::tried(
    const DeviceRoute& route, uint64_t trial, const std::optional<std::string>& objection) {
  if (objection) {
    goOn(route, *objection, [&](const State& state) {
      return state.stage == State::trying && state.trial == trial;
    });
    return;
  }
  MutexLock lock(mutex_);
  const auto found = routes_.find(route);
  if (found != routes_.end() && found->second.stage == State::trying &&
      found->second.trial == trial) {
    found->second.stage = State::works;
  }
}

void DevicePaths::postpone(const DeviceRoute& route, uint64_t trial) {
  MutexLock lock(mutex_);
  const auto found = routes_.find(route);
  if (found != routes_.end() && found->second.trial == trial) {
    routes_.erase(found);
  }
}

void DevicePaths::failed(const DeviceRoute& route, DevicePath path, const std::string& why) {
  goOn(route, why, [&](const State& state) {
    return state.stage != State::fails && state.path == path;
  });
}

/// From the path that is tried, or has worked, to the next one, if the route's state is the one that is meant: another one is
/// of a connection that has been lost since.
template <typename IsMeant>
void DevicePaths::goOn(const DeviceRoute& route, const std::string& why, IsMeant isMeant) {
  State before{};
  {
    MutexLock lock(mutex_);
    const auto found = routes_.find(route);
    if (found == routes_.end() || !isMeant(found->second)) {
      return;
    }
    before = found->second;
  }
  addObjection(before.objections, before.path, why);
  const Candidate next = candidateAfter(route, before.path, std::move(before.objections));
  const auto stage = next.path == DevicePath::host ? State::fails : State::trying;
  uint64_t trial = 0;
  {
    MutexLock lock(mutex_);
    const auto found = routes_.find(route);
    if (found == routes_.end() || found->second.trial != before.trial ||
        found->second.path != before.path) {
      return; // forgotten, or another thread has been as fast
    }
    trial = ++lastTrial_;
    found->second = {stage, next.path, trial, next.objections};
  }
  hooks_.fellBack(route, next.path, textOf(next.objections));
  if (stage == State::trying) {
    hooks_.tryPath(route, next.path, trial);
  }
}

void DevicePaths::forget(WorkerId peer) {
  MutexLock lock(mutex_);
  std::erase_if(routes_, [&](const auto& entry) { return entry.first.peer == peer; });
}

DevicePaths::Explanation DevicePaths::explain(const DeviceRoute& route) const {
  if (route.from.is_cpu() && route.to.is_cpu()) {
    return {route, DevicePath::host, "both are the host's memory"};
  }
  if (route.from.is_cpu() || route.to.is_cpu()) {
    return {route, DevicePath::host, "one of them is the host's memory"};
  }
  if (route.peer == self_) {
    return leftOut_.contains(DevicePath::process)
        ? Explanation{route, DevicePath::host, kLeftOut}
        : Explanation{route, DevicePath::process, "both are this process's"};
  }
  {
    MutexLock lock(mutex_);
    if (const auto found = routes_.find(route); found != routes_.end()) {
      return explain(route, found->second);
    }
  }
  Candidate first = candidateAfter(route, DevicePath::process, {});
  std::string reason = first.path == DevicePath::host
      ? textOf(first.objections)
      : std::string(nameOf(first.path)) + " has not been tried: the first tensor of " +
          std::to_string(kLeastBytes) + " bytes or more does";
  return {route, DevicePath::host, std::move(reason), std::move(first.objections)};
}

DevicePaths::Explanation DevicePaths::explain(const DeviceRoute& route, const State& state) {
  switch (state.stage) {
    case State::works:
      return {route, state.path, "bytes have come through it", state.objections};
    case State::trying:
      return {
          route, DevicePath::host, std::string(nameOf(state.path)) + " is being tried",
          state.objections};
    case State::fails:
      break;
  }
  return {route, DevicePath::host, textOf(state.objections), state.objections};
}

} // namespace torchwire::cuda
