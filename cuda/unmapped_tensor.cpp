#include "cuda/unmapped_tensor.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "cuda/device_maps.h"
#include "cuda/device_text.h"

namespace torchwire::cuda {
namespace {

/// The two workers by their parts in the call: the map is the caller's.
struct Call {
  const DeviceRecord& caller;
  const DeviceRecord& callee;
  DeviceMap map;

  bool isAutomatic() const {
    return caller.automatic && !caller.maps.contains(callee.name);
  }
};

/// Which map applies, what it `lacks`, and its entries; or that there is none.
std::string presentMap(const Call& call, const std::string& lacks) {
  const std::string which = call.isAutomatic()
      ? "device_maps=\"auto\" of " + call.caller.name
      : "the device map of " + call.caller.name + " for " + call.callee.name;
  if (call.map.empty() && !call.isAutomatic()) {
    return call.caller.name + " has no device map for " + call.callee.name + ".\n";
  }
  return which + " " + lacks +
      (call.map.empty()
           ? ".\n"
           : ":\n" + mapTable(call.caller.name, call.callee.name, sortedEntries(call.map), {}));
}

std::string whatIsMissing(const UnmappedTensor& tensor, const Call& call) {
  const std::string start =
      "tensor " + std::to_string(tensor.index) + " is on " + tensor.device.str() + " of ";
  if (tensor.direction == Direction::request) {
    return "Request device mapping is not available for destination " + call.callee.name + ": " +
        start + call.caller.name + ", and " +
        presentMap(call, "does not lead on from " + tensor.device.str());
  }
  return "Response device mapping is not available for destination " + call.caller.name + ": " +
      start + call.callee.name + ". A response travels the caller's device map backwards, and " +
      presentMap(call, "does not lead to " + tensor.device.str());
}

/// Where a new entry would have its other end: the same index where that is free, else another device of the type, else
/// the cpu; or nothing, where all are taken.
std::optional<c10::Device> otherEnd(const UnmappedTensor& tensor, const Call& call) {
  const bool request = tensor.direction == Direction::request;
  std::vector<c10::Device> taken;
  for (const auto& [from, to] : call.map) {
    taken.push_back(request ? to : from);
  }
  const auto device = freeDevice(request ? call.callee : call.caller, tensor.device, taken);
  const c10::Device cpu(c10::DeviceType::CPU);
  const bool cpuTaken = std::find(taken.begin(), taken.end(), cpu) != taken.end();
  return device || cpuTaken ? device : cpu;
}

/// The arguments of set_device_map. They are added to a map that is there, but take the place of an automatic one.
DeviceEntries argumentsFor(const UnmappedTensor& tensor, const Call& call, c10::Device other) {
  DeviceMap map = call.isAutomatic() ? call.map : DeviceMap();
  const bool request = tensor.direction == Direction::request;
  map.emplace(request ? tensor.device : other, request ? other : tensor.device);
  return sortedEntries(map);
}

std::string linesToAdd(const UnmappedTensor& tensor, const Call& call, const DeviceRecord& sender) {
  if (!sender.has(tensor.device)) {
    // As a meta tensor's, which has nothing to send.
    return "A device map cannot help: " + countInWords(sender, tensor.device.type()) + ".";
  }
  const std::string place = tensor.device.str() + " of " + sender.name;
  const auto other = otherEnd(tensor, call);
  if (!other) {
    return "All devices at the other end of the map are taken, so " + place + " cannot get one.";
  }
  std::string lines = "In the options of " + call.caller.name +
      ", add:\n    options.set_device_map(\"" + call.callee.name + "\", " +
      inPython(argumentsFor(tensor, call, *other)) + ")";
  if (other->is_cpu()) {
    lines += tensor.direction == Direction::request
        ? "\nThe CPU tensors of responses then come to " + place + ", too."
        : "\nThe CPU tensors of requests then come to " + place + ", too.";
  }
  if (!sender.mayUse(tensor.device)) {
    std::vector<c10::Device> devices = sender.devices;
    devices.push_back(tensor.device);
    lines += "\nAnd in those of " + sender.name + ":\n    options.set_devices(" +
        inPython(devices) + ")";
  }
  return lines;
}

/// The first device in the error of a future whose value is on others than its own. That text is all there is: the value
/// is gone when the error is seen.
std::optional<c10::Device> unexpectedDevice(std::string_view error) {
  constexpr std::string_view kBefore = "The result contained tensors residing on device(s) ";
  constexpr std::string_view kAfter = " which are not among the expected device(s)";
  const size_t found = error.find(kBefore);
  if (found == error.npos || error.find(kAfter, found) == error.npos) {
    return std::nullopt;
  }
  const std::string_view devices = error.substr(found + kBefore.size());
  try {
    return c10::Device(std::string(devices.substr(0, devices.find_first_of(", "))));
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

/// libtorch's future takes its value, then records an event on each device of it. What that throws where a device is lost
/// becomes the error of a future that is complete by now, which is refused; the refusal alone comes out.
bool isRefusedError(std::string_view error) {
  constexpr std::string_view kNode = "Error on Node ";
  constexpr std::string_view kRefused = ": !completed() INTERNAL ASSERT FAILED";
  const size_t colon = error.find(':');
  return error.starts_with(kNode) && colon != error.npos &&
      error.substr(colon).starts_with(kRefused);
}

} // namespace

std::string withRemedy(std::string error, const DeviceRecord& callee, const DeviceRecord& caller) {
  if (isRefusedError(error)) {
    return "worker '" + callee.name + "' has no result for the call: a device has failed";
  }
  const auto device = unexpectedDevice(error);
  if (!device) {
    return error;
  }
  const Call call{caller, callee, mapTo(caller, callee)};
  const UnmappedTensor tensor{Direction::response, 0, *device};
  return error + "\nA value of " + callee.name + " is on " + device->str() +
      ", which no device map names: move it with .cpu() before the function returns it, or map the "
      "device.\n" +
      linesToAdd(tensor, call, callee);
}

std::string noMapping(
    const UnmappedTensor& tensor, const DeviceRecord& sender, const DeviceRecord& receiver) {
  const bool request = tensor.direction == Direction::request;
  const DeviceRecord& caller = request ? sender : receiver;
  const DeviceRecord& callee = request ? receiver : sender;
  const Call call{caller, callee, mapTo(caller, callee)};
  return whatIsMissing(tensor, call) +
      "PyTorch's TensorPipe RPC backend only supports CPU tensors by default, and so does "
      "torchwire: move the tensor with .cpu() " +
      (request ? "before the call" : "before the function returns it") +
      ", or call `set_device_map` on `TensorPipeRpcBackendOptions` or "
      "`TorchwireRpcBackendOptions`.\n" +
      linesToAdd(tensor, call, sender);
}

} // namespace torchwire::cuda
