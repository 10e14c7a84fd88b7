#include "cuda/device_maps.h"

#include <catch2/catch.hpp>

#include "test/unit/cuda/sample_devices.h"

using namespace torchwire::cuda;

namespace {

const c10::Device kCpu0(c10::DeviceType::CPU, 0);

DeviceRecord automatic(DeviceRecord record) {
  record.automatic = true;
  return record;
}

} // namespace

TEST_CASE("a request travels the caller's map, the response the same backwards", "[device_maps]") {
  DeviceRecord caller = worker("a", 2);
  const DeviceRecord callee = worker("b", 2);
  caller.maps["b"] = {{gpu(0), gpu(1)}, {gpu(1), gpu(0)}};
  CHECK((mapTo(caller, callee) == DeviceMap{{gpu(0), gpu(1)}, {gpu(1), gpu(0)}}));
  CHECK((reverseMapFrom(callee, caller) == DeviceMap{{gpu(1), gpu(0)}, {gpu(0), gpu(1)}}));
  CHECK(mapTo(callee, caller).empty());
  CHECK(reverseMapFrom(caller, callee).empty());
}

TEST_CASE("the two directions between workers have maps of their own", "[device_maps]") {
  DeviceRecord a = worker("a", 3);
  DeviceRecord b = worker("b", 3);
  a.maps["b"] = {{gpu(0), gpu(1)}};
  b.maps["a"] = {{gpu(0), gpu(2)}};
  CHECK((mapTo(b, a) == DeviceMap{{gpu(0), gpu(2)}}));
  CHECK((reverseMapFrom(b, a) == DeviceMap{{gpu(1), gpu(0)}}));
  CHECK((reverseMapFrom(a, b) == DeviceMap{{gpu(2), gpu(0)}}));
}

TEST_CASE("a worker may have a map for itself", "[device_maps]") {
  DeviceRecord self = worker("a", 2);
  self.maps["a"] = {{gpu(0), gpu(1)}};
  CHECK((mapTo(self, self) == DeviceMap{{gpu(0), gpu(1)}}));
  CHECK((reverseMapFrom(self, self) == DeviceMap{{gpu(1), gpu(0)}}));
  CHECK((devicesOf(self, {self}) == std::vector{gpu(0), gpu(1)}));
}

TEST_CASE("the cpu is in a map as tensors name it", "[device_maps]") {
  DeviceRecord caller = worker("a", 2);
  const DeviceRecord callee = worker("b", 2);
  caller.maps["b"] = {{kCpu0, gpu(1)}, {gpu(0), kCpu0}};
  CHECK((mapTo(caller, callee) == DeviceMap{{kCpu, gpu(1)}, {gpu(0), kCpu}}));
  CHECK((reverseMapFrom(callee, caller) == DeviceMap{{gpu(1), kCpu}, {kCpu, gpu(0)}}));
}

TEST_CASE("an automatic map leads to the same device where both have it", "[device_maps]") {
  DeviceRecord two = automatic(worker("two", 2));
  DeviceRecord three = worker("three", 3);
  const DeviceMap both = {{gpu(0), gpu(0)}, {gpu(1), gpu(1)}};
  CHECK((mapTo(two, three) == both));
  CHECK((reverseMapFrom(three, two) == both));
  CHECK((mapTo(automatic(three), two) == both));
  CHECK((mapTo(two, two) == both));
  CHECK(mapTo(two, worker("none", 0)).empty());
  CHECK(mapTo(three, two).empty()); // it is not automatic
}

TEST_CASE("an automatic map keeps to the devices that both were given", "[device_maps]") {
  DeviceRecord a = automatic(worker("a", 4));
  DeviceRecord b = worker("b", 4);
  a.devices = {gpu(0), gpu(1), gpu(2)};
  b.devices = {gpu(1), gpu(2), gpu(3)};
  CHECK((mapTo(a, b) == DeviceMap{{gpu(1), gpu(1)}, {gpu(2), gpu(2)}}));
}

TEST_CASE("an automatic map knows devices of any type", "[device_maps]") {
  DeviceRecord a = automatic(worker("a", 0));
  DeviceRecord b = worker("b", 2);
  a.counts[c10::DeviceType::PrivateUse1] = 2;
  b.counts[c10::DeviceType::PrivateUse1] = 1;
  const c10::Device device(c10::DeviceType::PrivateUse1, 0);
  CHECK((mapTo(a, b) == DeviceMap{{device, device}}));
}

TEST_CASE("a map that is given takes the place of the automatic one", "[device_maps]") {
  DeviceRecord a = automatic(worker("a", 2));
  a.maps["b"] = {{gpu(0), gpu(1)}};
  a.maps["c"] = {};
  CHECK((mapTo(a, worker("b", 2)) == DeviceMap{{gpu(0), gpu(1)}}));
  CHECK(mapTo(a, worker("c", 2)).empty());
  CHECK(mapTo(a, worker("d", 2)).size() == 2);
}

TEST_CASE("a worker uses the devices that it was given, in order", "[device_maps]") {
  DeviceRecord self = worker("a", 4);
  self.devices = {gpu(3), kCpu, gpu(0)};
  self.maps["b"] = {{gpu(3), gpu(1)}};
  CHECK((devicesOf(self, {self, worker("b", 2)}) == std::vector{gpu(0), gpu(3)}));
}

TEST_CASE("else those that its own maps and the others' name on it", "[device_maps]") {
  DeviceRecord a = worker("a", 4);
  DeviceRecord b = worker("b", 4);
  const DeviceRecord c = worker("c", 4);
  a.maps["b"] = {{gpu(3), gpu(2)}, {kCpu, gpu(1)}};
  a.maps["later"] = {{gpu(2), gpu(0)}}; // a worker that is not there yet
  b.maps["a"] = {{gpu(0), gpu(0)}, {gpu(1), kCpu}};
  const std::vector<DeviceRecord> group = {c, b, a};
  CHECK((devicesOf(a, group) == std::vector{gpu(0), gpu(2), gpu(3)}));
  CHECK((devicesOf(b, group) == std::vector{gpu(0), gpu(1), gpu(2)}));
  CHECK(devicesOf(c, group).empty());
}

TEST_CASE(
    "an automatic worker uses all its devices, another those that are mapped to", "[device_maps]") {
  const DeviceRecord a = automatic(worker("a", 2));
  const DeviceRecord b = worker("b", 3);
  CHECK((devicesOf(a, {a, b}) == std::vector{gpu(0), gpu(1)}));
  CHECK((devicesOf(b, {a, b}) == std::vector{gpu(0), gpu(1)}));
}
