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
  nccl, // by a communicator of NCCL's between the two devices
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

/// Chooses the path of each route: to this worker itself `process`; to others the first of `ipc` and `nccl` that has been
/// tried and works, and `host` until then and where none does. What has been tried is forgotten when the connection is
/// lost. Thread-safe; may be called with locks held, and calls none of its hooks with its own.
class DevicePaths {
 public:
  struct Hooks {
    /// Why `ipc` or `nccl` need not be tried; empty: nobody wants it. Null: nothing is known against it. Does not wait.
    std::function<std::optional<std::string>(const DeviceRoute&, DevicePath)> objectionTo;
    /// Starts to try, elsewhere; the result comes by tried(), with the same number. Does not wait.
    std::function<void(const DeviceRoute&, DevicePath, uint64_t trial)> tryPath;
    /// What has been tried does not work, or what an option asks for cannot be tried, and why: this path is taken now, `nccl`
    /// or `host`. Once for each path.
    std::function<void(const DeviceRoute&, DevicePath taken, const std::string& why)> fellBack;
  };
  struct Objection {
    DevicePath path;
    std::string reason;
  };
  struct Explanation {
    DeviceRoute route;
    DevicePath path;
    std::string reason;
    std::vector<Objection> notTaken = {}; // to the paths that come before it
  };

  /// What is smaller goes by way of the host, in the frame itself.
  static constexpr size_t kLeastBytes = 64 << 10;

  /// `leftOut`: are not used. Not `host`, which is always possible.
  DevicePaths(WorkerId self, Hooks hooks, std::set<DevicePath> leftOut = {})
      : self_(self), hooks_(std::move(hooks)), leftOut_(std::move(leftOut)) {}

  /// Both devices of the route are accelerators.
  DevicePath choose(const DeviceRoute& route, size_t bytes) EXCLUDES(mutex_);

  /// The end of a trial, and why the path does not work, if it does not. Then the next one is tried.
  void tried(const DeviceRoute& route, uint64_t trial, const std::optional<std::string>& objection)
      EXCLUDES(mutex_);

  /// The trial could not be made: the next tensor begins another.
  void postpone(const DeviceRoute& route, uint64_t trial) EXCLUDES(mutex_);

  /// A transfer by this path has failed, so that the next ones go another way.
  void failed(const DeviceRoute& route, DevicePath path, const std::string& why) EXCLUDES(mutex_);

  void forget(WorkerId peer) EXCLUDES(mutex_);

  /// What choose() would say of large tensors. Tries nothing.
  Explanation explain(const DeviceRoute& route) const EXCLUDES(mutex_);

 private:
  struct State {
    enum { trying, works, fails } stage;
    DevicePath path; // that is tried, or works; `host` where all fail
    uint64_t trial = 0; // the number of the latest
    std::vector<Objection> objections; // to the paths that come before it
  };
  /// What comes next on a route.
  struct Candidate {
    DevicePath path; // `host`: there is none
    std::vector<Objection> objections; // to those that are left out
  };

  static Explanation explain(const DeviceRoute& route, const State& state);
  std::optional<std::string> objectionTo(const DeviceRoute& route, DevicePath path) const;
  Candidate candidateAfter(
      const DeviceRoute& route, DevicePath path, std::vector<Objection> objections) const;
  template <typename IsMeant>
  void goOn(const DeviceRoute& route, const std::string& why, IsMeant isMeant) EXCLUDES(mutex_);

  const WorkerId self_;
  const Hooks hooks_;
  const std::set<DevicePath> leftOut_;
  mutable Mutex mutex_{LockRank::devicePaths};
  std::map<DeviceRoute, State> routes_ GUARDED_BY(mutex_); // those that have been asked for
  uint64_t lastTrial_ GUARDED_BY(mutex_) = 0;
};

} // namespace torchwire::cuda
