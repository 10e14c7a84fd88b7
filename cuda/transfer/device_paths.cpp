#include "cuda/transfer/device_paths.h"

#include <tuple>
#include <utility>

#include "cuda/device_record.h"

namespace torchwire::cuda {
namespace {

constexpr const char* kLeftOut = "the option _device_paths leaves it out";

} // namespace

const char* nameOf(DevicePath path) {
  switch (path) {
    case DevicePath::process:
      return "process";
    case DevicePath::ipc:
      return "ipc";
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
  if (bytes < kLeastBytesForIpc) {
    return DevicePath::host;
  }
  {
    MutexLock lock(mutex_);
    if (const auto found = routes_.find(route); found != routes_.end()) {
      return found->second.stage == State::works ? DevicePath::ipc : DevicePath::host;
    }
  }
  const auto objection = objectionToIpc(route);
  uint64_t trial = 0;
  {
    MutexLock lock(mutex_);
    trial = ++lastTrial_;
    State state{objection ? State::fails : State::trying, trial, objection.value_or("")};
    if (!routes_.emplace(route, std::move(state)).second) {
      return DevicePath::host; // another thread has been as fast
    }
  }
  if (!objection) {
    hooks_.tryIpc(route, trial);
  }
  return DevicePath::host; // this tensor does not wait for the trial
}

std::optional<std::string> DevicePaths::objectionToIpc(const DeviceRoute& route) const {
  return leftOut_.contains(DevicePath::ipc) ? kLeftOut : hooks_.objectionToIpc(route);
}

void DevicePaths::tried(
    const DeviceRoute& route, uint64_t trial, const std::optional<std::string>& objection) {
  if (objection) {
    setFailed(route, *objection, trial);
    return;
  }
  MutexLock lock(mutex_);
  const auto found = routes_.find(route);
  if (found != routes_.end() && found->second.trial == trial) {
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

void DevicePaths::failed(const DeviceRoute& route, const std::string& why) {
  setFailed(route, why, std::nullopt);
}

void DevicePaths::setFailed(
    const DeviceRoute& route, const std::string& why, std::optional<uint64_t> trial) {
  {
    MutexLock lock(mutex_);
    const auto found = routes_.find(route);
    if (found == routes_.end() || found->second.stage == State::fails ||
        (trial && found->second.trial != *trial)) {
      return; // of a connection that has been lost since
    }
    found->second.stage = State::fails;
    found->second.objection = why;
  }
  hooks_.fellBack(route, why);
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
      const State& state = found->second;
      switch (state.stage) {
        case State::works:
          return {route, DevicePath::ipc, "bytes have come through it"};
        case State::trying:
          return {route, DevicePath::host, "ipc is being tried"};
        case State::fails:
          return {route, DevicePath::host, state.objection};
      }
    }
  }
  if (const auto objection = objectionToIpc(route)) {
    return {route, DevicePath::host, *objection};
  }
  return {
      route, DevicePath::host,
      "ipc has not been tried: the first tensor of " + std::to_string(kLeastBytesForIpc) +
          " bytes or more does"};
}

} // namespace torchwire::cuda
