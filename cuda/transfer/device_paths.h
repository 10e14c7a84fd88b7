// Which way tensors of devices take to another worker.
#pragma once

#include <c10/core/Device.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/wire/roster.h"

namespace torchwire::cuda {

enum class DevicePath : uint8_t {
  host, // by way of the host's memory, in the frame; between any two devices
  process, // a copy from one device to the other, within this process
  ipc, // the receiver opens memory of the sender's device and copies from it
};

/// As options and explanations have it.
const char* nameOf(DevicePath path);

/// From a device of this worker to one of a peer's.
struct DeviceRoute {
  WorkerId peer;
  c10::Device from;
  c10::Device to;

  bool operator<(const DeviceRoute& other) const;
};

/// Chooses the path of each route: to this worker itself `process`, to others `ipc` where it has been tried and works,
/// and `host` until then and where it does not. What has been tried is forgotten when the connection is lost. Thread-safe;
/// may be called with locks held, and calls none of its hooks with its own.
class DevicePaths {
 public:
  struct Hooks {
    /// Why `ipc` need not be tried; null: nothing is known against it. Does not wait.
    std::function<std::optional<std::string>(const DeviceRoute&)> objectionToIpc;
    /// Starts to try, elsewhere; the result comes by tried(), with the same number. Does not wait.
    std::function<void(const DeviceRoute&, uint64_t trial)> tryIpc;
    /// `ipc` does not work, and why: once for each route.
    std::function<void(const DeviceRoute&, const std::string& why)> fellBack;
  };
  struct Explanation {
    DeviceRoute route;
    DevicePath path;
    std::string reason;
  };

  /// What is smaller goes by way of the host, in the frame itself.
  static constexpr size_t kLeastBytesForIpc = 64 << 10;

  /// `leftOut`: are not used. Not `host`, which is always possible.
  DevicePaths(WorkerId self, Hooks hooks, std::set<DevicePath> leftOut = {})
      : self_(self), hooks_(std::move(hooks)), leftOut_(std::move(leftOut)) {}

  /// Both devices of the route are accelerators.
  DevicePath choose(const DeviceRoute& route, size_t bytes) EXCLUDES(mutex_);

  /// The end of a trial, and why the path does not work, if it does not.
  void tried(const DeviceRoute& route, uint64_t trial, const std::optional<std::string>& objection)
      EXCLUDES(mutex_);

  /// The trial could not be made: the next tensor begins another.
  void postpone(const DeviceRoute& route, uint64_t trial) EXCLUDES(mutex_);

  /// A transfer by `ipc` has failed, so that the next ones go another way.
  void failed(const DeviceRoute& route, const std::string& why) EXCLUDES(mutex_);

  void forget(WorkerId peer) EXCLUDES(mutex_);

  /// What choose() would say of large tensors. Tries nothing.
  Explanation explain(const DeviceRoute& route) const EXCLUDES(mutex_);

 private:
  struct State {
    enum { trying, works, fails } stage;
    uint64_t trial = 0;
    std::string objection;
  };

  std::optional<std::string> objectionToIpc(const DeviceRoute& route) const;
  void setFailed(const DeviceRoute& route, const std::string& why, std::optional<uint64_t> trial);

  const WorkerId self_;
  const Hooks hooks_;
  const std::set<DevicePath> leftOut_;
  mutable Mutex mutex_{LockRank::devicePaths};
  std::map<DeviceRoute, State> routes_ GUARDED_BY(mutex_); // those that have been asked for
  uint64_t lastTrial_ GUARDED_BY(mutex_) = 0;
};

} // namespace torchwire::cuda
