#include "cuda/transfer/device_paths.h"

#include <catch2/catch.hpp>

#include <vector>

#include "test/unit/cuda/sample_devices.h"

using namespace torchwire;
using namespace torchwire::cuda;

namespace {

constexpr size_t kLarge = DevicePaths::kLeastBytes;
constexpr WorkerId kSelf = 0;

/// Paths whose trials are whatever the test makes of them.
struct StagedPaths {
  std::optional<std::string> objection; // to ipc
  std::optional<std::string> objectionToNccl = ""; // as where nobody wants it
  std::vector<uint64_t> trials;
  std::vector<DevicePath> triedPaths;
  std::vector<std::string> fallbacks;
  std::vector<DevicePath> takenPaths;
  DevicePaths paths{
      kSelf,
      {[this](const DeviceRoute&, DevicePath path) {
         return path == DevicePath::ipc ? objection : objectionToNccl;
       },
       [this](const DeviceRoute&, DevicePath path, uint64_t trial) {
         triedPaths.push_back(path);
         trials.push_back(trial);
       },
       [this](const DeviceRoute&, DevicePath taken, const std::string& why) {
         takenPaths.push_back(taken);
         fallbacks.push_back(why);
       }}};

  DevicePath choose(const DeviceRoute& route, size_t bytes = kLarge) {
    return paths.choose(route, bytes);
  }
  std::string explained(const DeviceRoute& route) {
    const auto explanation = paths.explain(route);
    return std::string(nameOf(explanation.path)) + ": " + explanation.reason;
  }
  /// "path: reason" for each that comes before it.
  std::vector<std::string> notTaken(const DeviceRoute& route) {
    std::vector<std::string> texts;
    for (const auto& [path, reason] : paths.explain(route).notTaken) {
      texts.push_back(std::string(nameOf(path)) + ": " + reason);
    }
    return texts;
  }
};

const DeviceRoute kRoute{1, gpu(0), gpu(1)};

} // namespace

TEST_CASE("a trial that could not be made is made for the next tensor", "[device_paths]") {
  StagedPaths staged;
  staged.choose(kRoute);
  staged.paths.postpone(kRoute, staged.trials.back() + 1); // another's
  staged.choose(kRoute);
  CHECK(staged.trials.size() == 1);
  staged.paths.postpone(kRoute, staged.trials.back());
  CHECK(staged.choose(kRoute) == DevicePath::host);
  REQUIRE(staged.trials.size() == 2);
  staged.paths.tried(kRoute, staged.trials.back(), std::nullopt);
  CHECK(staged.choose(kRoute) == DevicePath::ipc);
  CHECK(staged.fallbacks.empty());
}

TEST_CASE("paths that are left out are not tried", "[device_paths]") {
  size_t trials = 0;
  DevicePaths paths(
      kSelf,
      {[](const DeviceRoute&, DevicePath) { return std::nullopt; },
       [&](const DeviceRoute&, DevicePath, uint64_t) { ++trials; },
       [](const DeviceRoute&, DevicePath, const std::string&) {}},
      {DevicePath::process, DevicePath::ipc, DevicePath::nccl});
  for (const WorkerId peer : {kSelf, WorkerId{1}}) {
    const DeviceRoute route{peer, gpu(0), gpu(1)};
    CHECK(paths.choose(route, kLarge) == DevicePath::host);
    CHECK(paths.explain(route).path == DevicePath::host);
    CHECK(paths.explain(route).reason == "the option _device_paths leaves it out");
  }
  CHECK(trials == 0);
}

TEST_CASE("a worker's tensors to itself stay in the process", "[device_paths]") {
  StagedPaths staged;
  CHECK(staged.choose({kSelf, gpu(0), gpu(1)}, 4) == DevicePath::process);
  CHECK(staged.trials.empty());
  CHECK(staged.explained({kSelf, gpu(0), gpu(1)}) == "process: both are this process's");
}

TEST_CASE("small tensors go by way of the host, and try nothing", "[device_paths]") {
  StagedPaths staged;
  CHECK(staged.choose(kRoute, kLarge - 1) == DevicePath::host);
  CHECK(staged.trials.empty());
  CHECK(
      staged.explained(kRoute) ==
      "host: ipc has not been tried: the first tensor of 65536 bytes or more does");
}

TEST_CASE("the first large tensor tries ipc and does not wait for it", "[device_paths]") {
  StagedPaths staged;
  CHECK(staged.choose(kRoute) == DevicePath::host);
  CHECK(staged.choose(kRoute) == DevicePath::host);
  REQUIRE(staged.trials.size() == 1);
  CHECK(staged.explained(kRoute) == "host: ipc is being tried");
  staged.paths.tried(kRoute, staged.trials[0], std::nullopt);
  CHECK(staged.choose(kRoute) == DevicePath::ipc);
  CHECK(staged.choose(kRoute, 4) == DevicePath::host);
  CHECK(staged.explained(kRoute) == "ipc: bytes have come through it");
  CHECK(staged.fallbacks.empty());
}

TEST_CASE("each pair of devices is tried by itself", "[device_paths]") {
  StagedPaths staged;
  const DeviceRoute other{1, gpu(1), gpu(1)};
  staged.choose(kRoute);
  staged.choose(other);
  REQUIRE(staged.trials.size() == 2);
  staged.paths.tried(other, staged.trials[1], "no access");
  staged.paths.tried(kRoute, staged.trials[0], std::nullopt);
  CHECK(staged.choose(kRoute) == DevicePath::ipc);
  CHECK(staged.choose(other) == DevicePath::host);
  CHECK(staged.explained(other) == "host: no access");
  CHECK(staged.fallbacks == std::vector<std::string>{"no access"});
}

TEST_CASE("what is known to be impossible is not tried, nor said", "[device_paths]") {
  StagedPaths staged;
  staged.objection = "it runs on another host";
  CHECK(staged.choose(kRoute) == DevicePath::host);
  CHECK(staged.trials.empty());
  CHECK(staged.fallbacks.empty());
  CHECK(staged.explained(kRoute) == "host: it runs on another host");
}

TEST_CASE("a trial that fails is said once, and not repeated", "[device_paths]") {
  StagedPaths staged;
  staged.choose(kRoute);
  staged.paths.tried(kRoute, staged.trials[0], "other bytes came than were sent");
  staged.paths.tried(kRoute, staged.trials[0], "again");
  CHECK(staged.choose(kRoute) == DevicePath::host);
  CHECK(staged.trials.size() == 1);
  CHECK(staged.fallbacks == std::vector<std::string>{"other bytes came than were sent"});
}

TEST_CASE("a path that has worked may fail later", "[device_paths]") {
  StagedPaths staged;
  staged.choose(kRoute);
  staged.paths.tried(kRoute, staged.trials[0], std::nullopt);
  staged.paths.failed(kRoute, DevicePath::ipc, "the device is lost");
  CHECK(staged.choose(kRoute) == DevicePath::host);
  CHECK(staged.explained(kRoute) == "host: the device is lost");
  CHECK(staged.fallbacks.size() == 1);
  staged.paths.failed({2, gpu(0), gpu(0)}, DevicePath::ipc, "of another route");
  CHECK(staged.fallbacks.size() == 1);
}

TEST_CASE("a lost connection makes for a new trial", "[device_paths]") {
  StagedPaths staged;
  const DeviceRoute toAnother{2, gpu(0), gpu(0)};
  staged.choose(kRoute);
  staged.choose(toAnother);
  staged.paths.tried(toAnother, staged.trials[1], std::nullopt);
  staged.paths.forget(kRoute.peer);
  CHECK(staged.choose(kRoute) == DevicePath::host);
  REQUIRE(staged.trials.size() == 3);
  SECTION("the end of the one before says nothing") {
    staged.paths.tried(kRoute, staged.trials[0], std::nullopt);
    CHECK(staged.choose(kRoute) == DevicePath::host);
    staged.paths.tried(kRoute, staged.trials[0], "the connection is lost");
    CHECK(staged.fallbacks.empty());
  }
  staged.paths.tried(kRoute, staged.trials[2], std::nullopt);
  CHECK(staged.choose(kRoute) == DevicePath::ipc);
  CHECK(staged.choose(toAnother) == DevicePath::ipc);
  CHECK(staged.trials.size() == 3);
}

TEST_CASE("tensors to and from the CPU have one way", "[device_paths]") {
  StagedPaths staged;
  CHECK(staged.explained({1, gpu(0), kCpu}) == "host: one of them is the host's memory");
  CHECK(staged.explained({1, kCpu, kCpu}) == "host: both are the host's memory");
}

// ---- nccl ---------------------------------------------------------------------------------------

TEST_CASE("nccl is tried where ipc has failed", "[device_paths]") {
  StagedPaths staged;
  staged.objectionToNccl = std::nullopt;
  CHECK(staged.choose(kRoute) == DevicePath::host);
  CHECK(staged.triedPaths == std::vector{DevicePath::ipc});
  staged.paths.tried(kRoute, staged.trials[0], "no access");
  CHECK(staged.triedPaths == std::vector{DevicePath::ipc, DevicePath::nccl});
  CHECK(staged.choose(kRoute) == DevicePath::host);
  CHECK(staged.explained(kRoute) == "host: nccl is being tried");
  CHECK(staged.takenPaths == std::vector{DevicePath::nccl});
  SECTION("and works") {
    staged.paths.tried(kRoute, staged.trials[1], std::nullopt);
    CHECK(staged.choose(kRoute) == DevicePath::nccl);
    CHECK(staged.choose(kRoute, kLarge - 1) == DevicePath::host);
    CHECK(staged.explained(kRoute) == "nccl: bytes have come through it");
    CHECK(staged.notTaken(kRoute) == std::vector<std::string>{"ipc: no access"});
    CHECK(staged.fallbacks == std::vector<std::string>{"no access"});
  }
  SECTION("and fails too") {
    staged.paths.tried(kRoute, staged.trials[1], "no memory");
    CHECK(staged.choose(kRoute) == DevicePath::host);
    CHECK(staged.explained(kRoute) == "host: no access; nccl: no memory");
    CHECK(staged.notTaken(kRoute) == std::vector<std::string>{"ipc: no access", "nccl: no memory"});
    CHECK(staged.takenPaths == std::vector{DevicePath::nccl, DevicePath::host});
    CHECK(staged.fallbacks.back() == "no access; nccl: no memory");
  }
  SECTION("and the end of ipc's trial comes again") {
    staged.paths.tried(kRoute, staged.trials[0], std::nullopt);
    staged.paths.tried(kRoute, staged.trials[0], "again");
    staged.paths.failed(kRoute, DevicePath::ipc, "a block");
    CHECK(staged.choose(kRoute) == DevicePath::host);
    CHECK(staged.trials.size() == 2);
  }
}

TEST_CASE("nccl is tried at once where ipc is known to be impossible", "[device_paths]") {
  StagedPaths staged;
  staged.objection = "it runs on another host";
  staged.objectionToNccl = std::nullopt;
  CHECK(
      staged.explained(kRoute) ==
      "host: nccl has not been tried: the first tensor of 65536 bytes or more does");
  CHECK(staged.notTaken(kRoute) == std::vector<std::string>{"ipc: it runs on another host"});
  staged.choose(kRoute);
  CHECK(staged.triedPaths == std::vector{DevicePath::nccl});
  CHECK(staged.fallbacks.empty());
  staged.paths.tried(kRoute, staged.trials[0], "one GPU");
  CHECK(staged.explained(kRoute) == "host: it runs on another host; nccl: one GPU");
}

TEST_CASE("that nccl cannot be tried is told where it is the last path", "[device_paths]") {
  StagedPaths staged;
  staged.objection = "it runs on another host";
  staged.objectionToNccl = "it cannot be encrypted";
  for (int i = 0; i < 2; ++i) { // once for a route
    CHECK(staged.choose(kRoute) == DevicePath::host);
  }
  CHECK(staged.trials.empty());
  CHECK(
      staged.fallbacks ==
      std::vector<std::string>{"it runs on another host; nccl: it cannot be encrypted"});
  CHECK(staged.takenPaths == std::vector{DevicePath::host});
}

TEST_CASE("why nccl is not tried is said where a worker has it", "[device_paths]") {
  StagedPaths staged;
  staged.objectionToNccl = "worker 'ps' does not have the option nccl";
  staged.choose(kRoute);
  staged.paths.tried(kRoute, staged.trials[0], "no access");
  CHECK(staged.trials.size() == 1);
  CHECK(
      staged.explained(kRoute) ==
      "host: no access; nccl: worker 'ps' does not have the option nccl");
}

TEST_CASE("nccl may fail later, and is tried anew on the next connection", "[device_paths]") {
  StagedPaths staged;
  staged.objection = "it runs on another host";
  staged.objectionToNccl = std::nullopt;
  staged.choose(kRoute);
  staged.paths.tried(kRoute, staged.trials[0], std::nullopt);
  staged.paths.failed(kRoute, DevicePath::nccl, "unhandled system error");
  CHECK(staged.choose(kRoute) == DevicePath::host);
  CHECK(staged.takenPaths == std::vector{DevicePath::host});
  staged.paths.forget(kRoute.peer);
  staged.choose(kRoute);
  CHECK(staged.triedPaths == std::vector{DevicePath::nccl, DevicePath::nccl});
}

TEST_CASE("ipc that fails later makes for a trial of nccl", "[device_paths]") {
  StagedPaths staged;
  staged.objectionToNccl = std::nullopt;
  staged.choose(kRoute);
  staged.paths.tried(kRoute, staged.trials[0], std::nullopt);
  staged.paths.failed(kRoute, DevicePath::ipc, "the device is lost");
  CHECK(staged.triedPaths.back() == DevicePath::nccl);
  staged.paths.tried(kRoute, staged.trials[1], std::nullopt);
  CHECK(staged.choose(kRoute) == DevicePath::nccl);
}
