// Each rule by itself, with the whole text of what breaks it.
#include "cuda/device_map_check.h"

#include <catch2/catch.hpp>

#include <algorithm>

#include "test/unit/cuda/sample_devices.h"

using namespace torchwire::cuda;

namespace {

using Group = std::vector<DeviceRecord>;

/// What is said about a complete group, "" for nothing; the same in every order of the records.
std::string objection(Group group) {
  const std::string text = objectionTo(group, /*complete=*/true).value_or("");
  std::sort(
      group.begin(), group.end(), [](const auto& a, const auto& b) { return a.name > b.name; });
  do {
    CHECK(objectionTo(group, /*complete=*/true).value_or("") == text);
  } while (std::prev_permutation(
      group.begin(), group.end(), [](const auto& a, const auto& b) { return a.name < b.name; }));
  return text;
}

DeviceRecord mapped(DeviceRecord self, const std::string& peer, const DeviceMap& map) {
  self.maps[peer] = map;
  return self;
}

DeviceRecord with(DeviceRecord self, const std::vector<c10::Device>& devices) {
  self.devices = devices;
  return self;
}

/// With one xpu device besides.
DeviceRecord withXpu(DeviceRecord self) {
  self.counts[c10::DeviceType::XPU] = 1;
  return self;
}

const DeviceRecord kWorker0 = worker("worker0", 2);
const DeviceRecord kWorker1 = worker("worker1", 2);
const DeviceRecord kSmall = worker("small", 1);
const DeviceRecord kNone = worker("none", 0);

} // namespace

TEST_CASE("a group without device maps is fine", "[device_map_check]") {
  CHECK(objection({}).empty());
  CHECK(objection({kWorker0}).empty());
  CHECK(objection({kWorker0, kWorker1, kNone}).empty());
}

TEST_CASE("maps that lead one to one between devices that exist are fine", "[device_map_check]") {
  const DeviceMap swap = {{gpu(0), gpu(1)}, {gpu(1), gpu(0)}};
  CHECK(objection({mapped(kWorker0, "worker1", swap), kWorker1}).empty());
  CHECK(objection({mapped(kWorker0, "worker0", swap), kWorker1}).empty());
  CHECK(objection({mapped(kWorker0, "worker1", swap), mapped(kWorker1, "worker0", swap)}).empty());
  CHECK(objection({mapped(with(kWorker0, {gpu(1)}), "worker1", {{gpu(1), gpu(0)}}),
                   with(kWorker1, {gpu(0)})})
            .empty());
}

TEST_CASE("the cpu may be on either side of a map", "[device_map_check]") {
  for (const c10::Device& cpu : {kCpu, c10::Device(c10::DeviceType::CPU, 0)}) {
    CHECK(objection({mapped(kNone, "worker1", {{cpu, gpu(0)}}), kWorker1}).empty());
    CHECK(objection({mapped(kWorker0, "none", {{gpu(0), cpu}}), kNone}).empty());
    CHECK(objection({mapped(kNone, "none", {{cpu, cpu}})}).empty());
    // Also beside given devices, which cannot list it.
    CHECK(objection({mapped(with(kWorker0, {gpu(0)}), "worker1", {{gpu(0), cpu}, {cpu, gpu(1)}}),
                     with(kWorker1, {gpu(1)})})
              .empty());
  }
}

TEST_CASE("an automatic worker goes together with any other", "[device_map_check]") {
  DeviceRecord automatic = worker("auto", 3);
  automatic.automatic = true;
  CHECK(objection({automatic, kWorker0, kNone, withXpu(kSmall)}).empty());
  CHECK(objection({automatic, with(kWorker0, {gpu(1)})}).empty());
}

TEST_CASE("a device is listed once", "[device_map_check]") {
  CHECK(
      objection({with(kWorker0, {gpu(0), gpu(1), gpu(0)}), kWorker1}) ==
      "Node worker0 has duplicated devices:\n"
      "    cuda:0\n"
      "    cuda:1\n"
      "    cuda:0   <-- is in the list already\n"
      "In the options of worker0, list each device once: devices=[0, 1]");
}

TEST_CASE("a device that is listed exists", "[device_map_check]") {
  CHECK(
      objection({with(kWorker0, {gpu(0), gpu(2)}), kWorker1}) ==
      "Node worker0 has devices with invalid indices:\n"
      "    cuda:0\n"
      "    cuda:2   <-- worker0 has 2 cuda devices, cuda:0 to cuda:1\n"
      "In the options of worker0, list only devices that it has. Indices begin at 0. "
      "CUDA_VISIBLE_DEVICES of worker0 may hide devices.");
  CHECK(
      objection({with(kSmall, {gpu(-1)})}) ==
      "Node small has devices with invalid indices:\n"
      "    cuda   <-- has no index; write cuda:0, for example\n"
      "In the options of small, list only devices that it has.");
  CHECK(
      objection({with(kNone, {xpu(0)})}) ==
      "Node none has devices with invalid indices:\n"
      "    xpu:0   <-- none has no xpu device at all\n"
      "In the options of none, list only devices that it has.");
}

TEST_CASE("devices that are listed are of one type", "[device_map_check]") {
  CHECK(
      objection({withXpu(with(kWorker0, {gpu(0), kCpu, xpu(0)}))}) ==
      "Node worker0 has devices of different types:\n"
      "    cuda:0\n"
      "    xpu:0       <-- xpu beside cuda\n"
      "A future of PyTorch can hold tensors on the cpu and on one more type of device. In the "
      "options of worker0, list `devices` of one type.");
}

TEST_CASE("maps are for workers of the group", "[device_map_check]") {
  DeviceRecord self = mapped(kWorker0, "worker1", {{gpu(0), gpu(1)}});
  self.maps["wroker1"] = {{gpu(0), kCpu}, {gpu(1), gpu(0)}};
  self.maps["none_exist"] = {};
  CHECK(
      objection({self, kWorker1}) ==
      "Node worker0 has invalid target node names in its device maps:\n"
      "    none_exist   {}                 <-- no worker has this name\n"
      "    worker1      {0: 1}\n"
      "    wroker1      {0: \"cpu\", 1: 0}   <-- no worker has this name; did you mean 'worker1'?\n"
      "The workers of the group are worker0, worker1. In the options of worker0, name one of "
      "them.");
}

TEST_CASE("of a large group, some workers are named", "[device_map_check]") {
  Group group = {mapped(worker("a", 1), "b", {})};
  for (int i = 10; i < 40; ++i) {
    group.push_back(worker("trainer" + std::to_string(i), 1));
  }
  CHECK_THAT(
      objectionTo(group, true).value_or(""),
      Catch::Contains("The workers of the group are a, trainer10, ") &&
          Catch::Contains(", trainer24 and 15 more. In the options of a, name one of them."));
}

TEST_CASE("while others may still join, a map may be for one of them", "[device_map_check]") {
  CHECK_FALSE(objectionTo({mapped(kWorker0, "later", {{gpu(0), gpu(7)}})}, false));
  CHECK_THAT(
      objectionTo({mapped(kWorker0, "later", {{gpu(2), gpu(7)}})}, false).value_or(""),
      Catch::StartsWith(
          "Node worker0 has source devices with invalid indices in its device map for "
          "later:\n"));
  CHECK_THAT(
      objectionTo({mapped(kWorker0, "later", {{gpu(0), gpu(7)}, {gpu(1), gpu(7)}})}, false)
          .value_or(""),
      Catch::StartsWith(
          "Node worker0 has duplicated target devices in its device map for later:\n") &&
          Catch::EndsWith("In the options of worker0, give each device a target of its own."));
}

TEST_CASE("two devices do not map to the same one", "[device_map_check]") {
  const DeviceMap map = {{gpu(0), gpu(0)}, {gpu(1), gpu(0)}};
  const std::string why =
      "A response travels the map backwards, and could not find back from a device that is the "
      "target of two. In the options of worker0, give each device a target of its own";
  CHECK(
      objection({mapped(kWorker0, "worker1", map), kWorker1}) ==
      "Node worker0 has duplicated target devices in its device map for worker1:\n"
      "    worker0 -> worker1\n"
      "    cuda:0  -> cuda:0\n"
      "    cuda:1  -> cuda:0    <-- already the target of cuda:0\n" +
          why + " (cuda:1 of worker1 is not used yet).");
  CHECK_THAT(
      objection({mapped(kWorker0, "small", map), kSmall}),
      Catch::EndsWith(why + " (small has no other cuda device for it: leave one entry out)."));
  const c10::Device cpu0(c10::DeviceType::CPU, 0);
  CHECK(
      objection({mapped(kWorker0, "none", {{gpu(0), kCpu}, {gpu(1), cpu0}}), kNone}) ==
      "Node worker0 has duplicated target devices in its device map for none:\n"
      "    worker0 -> none\n"
      "    cuda:0  -> cpu\n"
      "    cuda:1  -> cpu:0   <-- already the target of cuda:0\n" +
          why + ".");
}

TEST_CASE("the cpu does not map to two devices under two names", "[device_map_check]") {
  const c10::Device cpu0(c10::DeviceType::CPU, 0);
  CHECK(
      objection({mapped(kWorker0, "worker1", {{kCpu, gpu(0)}, {cpu0, gpu(1)}}), kWorker1}) ==
      "Node worker0 has duplicated source devices in its device map for worker1:\n"
      "    worker0 -> worker1\n"
      "    cpu     -> cuda:0\n"
      "    cpu:0   -> cuda:1    <-- the same device as cpu\n"
      "A device can have one target only: keep one of the entries in the options of worker0.");
}

TEST_CASE("a map leads from devices that exist", "[device_map_check]") {
  CHECK(
      objection({mapped(kWorker0, "worker1", {{gpu(0), gpu(0)}, {gpu(2), gpu(1)}}), kWorker1}) ==
      "Node worker0 has source devices with invalid indices in its device map for worker1:\n"
      "    worker0 -> worker1\n"
      "    cuda:0  -> cuda:0\n"
      "    cuda:2  -> cuda:1    <-- worker0 has 2 cuda devices, cuda:0 to cuda:1\n"
      "In the options of worker0, change the map: a source is a device of worker0 or \"cpu\". "
      "Indices begin at 0. CUDA_VISIBLE_DEVICES of worker0 may hide devices.");
  CHECK(
      objection({mapped(kNone, "worker1", {{xpu(0), gpu(0)}}), kWorker1}) ==
      "Node none has source devices with invalid indices in its device map for worker1:\n"
      "    none  -> worker1\n"
      "    xpu:0 -> cuda:0    <-- none has no xpu device at all\n"
      "In the options of none, change the map: a source is a device of none or \"cpu\".");
}

TEST_CASE("a map leads to devices that exist", "[device_map_check]") {
  CHECK(
      objection({mapped(kWorker0, "small", {{gpu(0), gpu(0)}, {gpu(1), gpu(1)}}), kSmall}) ==
      "Node worker0 has target devices with invalid indices in its device map for small:\n"
      "    worker0 -> small\n"
      "    cuda:0  -> cuda:0\n"
      "    cuda:1  -> cuda:1   <-- small has 1 cuda device, cuda:0\n"
      "In the options of worker0, change the map: a target is a device of small or \"cpu\". "
      "Indices begin at 0. CUDA_VISIBLE_DEVICES of small may hide devices.");
  CHECK(
      objection({mapped(kWorker0, "none", {{gpu(0), gpu(0)}, {gpu(1), kCpu}}), kNone}) ==
      "Node worker0 has target devices with invalid indices in its device map for none:\n"
      "    worker0 -> none\n"
      "    cuda:0  -> cuda:0   <-- none has no cuda device at all\n"
      "    cuda:1  -> cpu\n"
      "In the options of worker0, change the map: a target is a device of none or \"cpu\". "
      "CUDA_VISIBLE_DEVICES of none may hide devices.");
}

TEST_CASE("a map keeps to the devices that its worker was given", "[device_map_check]") {
  CHECK(
      objection({mapped(with(kWorker0, {gpu(1)}), "worker1", {{gpu(0), gpu(0)}}), kWorker1}) ==
      "Node worker0 has unexpected source devices in its device map for worker1:\n"
      "    worker0 -> worker1\n"
      "    cuda:0  -> cuda:0    <-- not in the `devices` of worker0\n"
      "The options of worker0 have this map and devices=[1]: change the map, add the device to "
      "`devices`, or leave `devices` out, so that they follow from the device maps.");
}

TEST_CASE("a map keeps to the devices that its peer was given", "[device_map_check]") {
  CHECK(
      objection(
          {mapped(kWorker0, "worker1", {{gpu(0), gpu(1)}, {gpu(1), gpu(2)}}),
           with(kWorker1, {gpu(0)})}) ==
      "Node worker0 has unexpected target devices in its device map for worker1:\n"
      "    worker0 -> worker1\n"
      "    cuda:0  -> cuda:1    <-- not in the `devices` of worker1\n"
      "    cuda:1  -> cuda:2    <-- worker1 has 2 cuda devices, cuda:0 to cuda:1\n"
      "The options of worker0 have this map, and those of worker1 have devices=[0]: change the "
      "map, add the device to `devices`, or leave `devices` out, so that they follow from the "
      "device maps.");
  CHECK_THAT(
      objection({mapped(with(kWorker0, {gpu(0)}), "worker0", {{gpu(0), gpu(1)}})}),
      Catch::Contains("The options of worker0 have this map and devices=[0]: "));
}

TEST_CASE("what maps name on a worker is of one type", "[device_map_check]") {
  CHECK(
      objection(
          {mapped(kWorker0, "worker1", {{gpu(0), xpu(0)}}),
           mapped(withXpu(kWorker1), "worker0", {{gpu(1), gpu(0)}})}) ==
      "Node worker1 has devices of different types:\n"
      "    cuda:1   the device map of worker1 for worker0\n"
      "    xpu:0    the device map of worker0 for worker1   <-- xpu beside cuda\n"
      "A future of PyTorch can hold tensors on the cpu and on one more type of device. Keep the "
      "maps to devices of one type on worker1, or list these as `devices` in its options.");
  // From one worker to another the type may change.
  CHECK(objection({mapped(kWorker0, "worker1", {{gpu(0), xpu(0)}}), withXpu(kWorker1)}).empty());
}

TEST_CASE("an automatic worker with two types of devices has to choose", "[device_map_check]") {
  DeviceRecord self = withXpu(kSmall);
  self.automatic = true;
  CHECK(
      objection({self, kWorker1}) ==
      "Node small has devices of different types:\n"
      "    cuda:0   device_maps=\"auto\" of small\n"
      "    xpu:0    device_maps=\"auto\" of small   <-- xpu beside cuda\n"
      "A future of PyTorch can hold tensors on the cpu and on one more type of device. Keep the "
      "maps to devices of one type on small, or list these as `devices` in its options.");
  CHECK(objection({with(self, {gpu(0)}), kWorker1}).empty());
}

TEST_CASE("of several mistakes, the first worker's is named", "[device_map_check]") {
  const DeviceRecord bad0 = mapped(kWorker0, "worker1", {{gpu(7), gpu(0)}});
  const DeviceRecord bad1 = mapped(kWorker1, "worker0", {{gpu(7), gpu(0)}});
  CHECK_THAT(objection({bad1, bad0}), Catch::StartsWith("Node worker0 has source devices"));
  // But `devices` are looked at first, because the maps are judged by them.
  CHECK_THAT(
      objection({bad0, with(kWorker1, {gpu(0), gpu(0)})}),
      Catch::StartsWith("Node worker1 has duplicated devices"));
}
