// Whether the devices and device maps of all workers of a group go together.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda/device_record.h"

namespace torchwire::cuda {

/// What is wrong with the devices and device maps of a group, with the remedy, or nothing. The first line has the words
/// of PyTorch's own check, which people search for; further lines show the map, mark what is wrong in it, and name the
/// worker whose options hold it. The same on every worker, however the records are ordered.
///
/// `complete`: nobody else will join. In a dynamic group a map for an unknown worker is fine, because it may come.
///
/// The rules, in the order in which they are looked at, with workers in order of their names (which are unique):
/// 1. of each worker's `devices`: none twice, each exists, all of one type (besides the cpu);
/// 2. of each worker: its maps are for workers of the group (if it is complete), itself included; and of each map:
///    - no source twice (as "cpu" and "cpu:0"), no target twice, or a response could not find back;
///    - the sources are among the worker's `devices`, or exist, if it was given none; the targets likewise at the peer.
///      The cpu always may be a source or a target;
/// 3. of each worker: what its own maps and the others' name on it is of one type (besides the cpu), because a future
///    of PyTorch cannot hold tensors on several.
std::optional<std::string> objectionTo(const std::vector<DeviceRecord>& group, bool complete);

} // namespace torchwire::cuda
