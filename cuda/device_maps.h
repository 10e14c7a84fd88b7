// Where tensors go: the device maps between two workers, and the devices that a worker's calls use.
//
// A request travels the caller's map for the callee; its response travels the same map backwards. So a map belongs to
// a caller, and stands in its options only:
//
//   worker0: set_device_map("worker1", {0: 1})    request   worker0 cuda:0 --> worker1 cuda:1
//                                                 response  worker0 cuda:0 <-- worker1 cuda:1
//
// A CPU tensor stays one where the map has no entry for the cpu. All are pure functions of what the workers told the
// group, and expect a group that objectionTo (device_map_check.h) has no objection to.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "cuda/device_record.h"

namespace torchwire::cuda {

/// For requests of `self` to `peer`: where tensors on a device of `self` go. The map that `self` was given for the
/// peer, even an empty one; else, with device_maps="auto", each device to that of the same type and index, where both
/// may use it; else none. The cpu is in it without an index, as tensors have it.
DeviceMap mapTo(const DeviceRecord& self, const DeviceRecord& peer);

/// For responses of `self` to requests of `peer`: where tensors on a device of `self` go.
DeviceMap reverseMapFrom(const DeviceRecord& self, const DeviceRecord& peer);

/// The devices that calls of and to `self` use, in order: those that it was given; or those on its side of its own
/// maps and of the others'. Without the cpu. `group` includes `self`; in a dynamic group, whoever is there.
std::vector<c10::Device> devicesOf(
    const DeviceRecord& self, const std::vector<DeviceRecord>& group);

} // namespace torchwire::cuda
