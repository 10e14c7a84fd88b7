#include "cuda/unmapped_tensor.h"

#include <ATen/core/ivalue_inl.h>
#include <ATen/core/jit_type.h>

#include <catch2/catch.hpp>

#include <exception>
#include <regex>
#include <stdexcept>

#include "test/unit/cuda/sample_devices.h"

using namespace torchwire::cuda;

namespace {

std::string ofRequest(
    const DeviceRecord& caller, const DeviceRecord& callee, c10::Device device, size_t index = 0) {
  return noMapping({Direction::request, index, device}, caller, callee);
}

std::string ofResponse(
    const DeviceRecord& callee, const DeviceRecord& caller, c10::Device device, size_t index = 0) {
  return noMapping({Direction::response, index, device}, callee, caller);
}

} // namespace

TEST_CASE(
    "the words of PyTorch's errors are there, as its tests look for them", "[unmapped_tensor]") {
  const std::string request = ofRequest(worker("worker0", 2), worker("worker1", 2), gpu(0));
  // In ECMAScript's grammar, as in Python's, the dot is no line break.
  CHECK(
      std::regex_search(
          request,
          std::regex(
              "TensorPipe RPC backend only supports CPU tensors by default.*`set_device_map` on "
              "`TensorPipeRpcBackendOptions`")));
  CHECK_THAT(
      request, Catch::Contains("Request device mapping is not available for destination worker1"));
  CHECK_THAT(
      ofResponse(worker("worker1", 2), worker("worker0", 2), gpu(0)),
      Catch::Contains("Response device mapping is not available for destination worker0"));
}

namespace {

const std::string kBeforeTheCall =
    "PyTorch's TensorPipe RPC backend only supports CPU tensors by default, and so does torchwire: "
    "move the tensor with .cpu() before the call, or call `set_device_map` on "
    "`TensorPipeRpcBackendOptions` or `TorchwireRpcBackendOptions`.\n";
const std::string kBeforeTheReturn =
    "PyTorch's TensorPipe RPC backend only supports CPU tensors by default, and so does torchwire: "
    "move the tensor with .cpu() before the function returns it, or call `set_device_map` on "
    "`TensorPipeRpcBackendOptions` or `TorchwireRpcBackendOptions`.\n";

} // namespace

TEST_CASE("a request without a device map is told the line to add", "[unmapped_tensor]") {
  CHECK(
      ofRequest(worker("worker0", 2), worker("worker1", 2), gpu(1), 2) ==
      "Request device mapping is not available for destination worker1: tensor 2 is on cuda:1 of "
      "worker0, and worker0 has no device map for worker1.\n" +
          kBeforeTheCall +
          "In the options of worker0, add:\n"
          "    options.set_device_map(\"worker1\", {1: 1})");
}

TEST_CASE("a response without a device map is told the line of the caller", "[unmapped_tensor]") {
  CHECK(
      ofResponse(worker("worker1", 2), worker("worker0", 2), gpu(0)) ==
      "Response device mapping is not available for destination worker0: tensor 0 is on cuda:0 of "
      "worker1. A response travels the caller's device map backwards, and worker0 has no device "
      "map "
      "for worker1.\n" +
          kBeforeTheReturn +
          "In the options of worker0, add:\n"
          "    options.set_device_map(\"worker1\", {0: 0})");
}

TEST_CASE(
    "a map that lacks the device is shown, and the missing entry fits into it",
    "[unmapped_tensor]") {
  DeviceRecord caller = worker("worker0", 2);
  const DeviceRecord callee = worker("worker1", 2);
  caller.maps["worker1"] = {{gpu(0), gpu(1)}};
  CHECK(
      ofRequest(caller, callee, gpu(1)) ==
      "Request device mapping is not available for destination worker1: tensor 0 is on cuda:1 of "
      "worker0, and the device map of worker0 for worker1 does not lead on from cuda:1:\n"
      "    worker0 -> worker1\n"
      "    cuda:0  -> cuda:1\n" +
          kBeforeTheCall +
          "In the options of worker0, add:\n"
          "    options.set_device_map(\"worker1\", {1: 0})");
  CHECK(
      ofResponse(callee, caller, gpu(0)) ==
      "Response device mapping is not available for destination worker0: tensor 0 is on cuda:0 of "
      "worker1. A response travels the caller's device map backwards, and the device map of "
      "worker0 "
      "for worker1 does not lead to cuda:0:\n"
      "    worker0 -> worker1\n"
      "    cuda:0  -> cuda:1\n" +
          kBeforeTheReturn +
          "In the options of worker0, add:\n"
          "    options.set_device_map(\"worker1\", {1: 0})");
}

TEST_CASE("an automatic map is written out, as the new one takes its place", "[unmapped_tensor]") {
  DeviceRecord caller = worker("worker0", 2);
  caller.automatic = true;
  CHECK(
      ofRequest(caller, worker("worker1", 1), gpu(1)) ==
      "Request device mapping is not available for destination worker1: tensor 0 is on cuda:1 of "
      "worker0, and device_maps=\"auto\" of worker0 does not lead on from cuda:1:\n"
      "    worker0 -> worker1\n"
      "    cuda:0  -> cuda:0\n" +
          kBeforeTheCall +
          "In the options of worker0, add:\n"
          "    options.set_device_map(\"worker1\", {0: 0, 1: \"cpu\"})\n"
          "The CPU tensors of responses then come to cuda:1 of worker0, too.");
  CHECK_THAT(
      ofRequest(caller, worker("worker1", 0), gpu(1)),
      Catch::Contains("device_maps=\"auto\" of worker0 does not lead on from cuda:1.\n"));
}

TEST_CASE("a response to a worker without devices may go to its cpu", "[unmapped_tensor]") {
  CHECK_THAT(
      ofResponse(worker("worker1", 2), worker("worker0", 0), gpu(1)),
      Catch::EndsWith(
          "In the options of worker0, add:\n"
          "    options.set_device_map(\"worker1\", {\"cpu\": 1})\n"
          "The CPU tensors of requests then come to cuda:1 of worker1, too."));
}

TEST_CASE("no line is named where all devices at the other end are taken", "[unmapped_tensor]") {
  DeviceRecord caller = worker("worker0", 3);
  caller.maps["worker1"] = {{gpu(0), gpu(0)}, {gpu(1), kCpu}};
  CHECK_THAT(
      ofRequest(caller, worker("worker1", 1), gpu(2)),
      Catch::EndsWith(
          "All devices at the other end of the map are taken, so cuda:2 of worker0 cannot get "
          "one."));
}

TEST_CASE("a sender with a list of devices is told to add the tensor's", "[unmapped_tensor]") {
  DeviceRecord limited = worker("worker0", 2);
  limited.devices = {gpu(0)};
  CHECK_THAT(
      ofRequest(limited, worker("worker1", 2), gpu(1)),
      Catch::EndsWith(
          "In the options of worker0, add:\n"
          "    options.set_device_map(\"worker1\", {1: 1})\n"
          "And in those of worker0:\n"
          "    options.set_devices([0, 1])"));
}

TEST_CASE("devices that are not CUDA are named by type", "[unmapped_tensor]") {
  DeviceRecord caller = worker("a", 0);
  DeviceRecord callee = worker("b", 0);
  caller.counts[c10::DeviceType::XPU] = 1;
  callee.counts[c10::DeviceType::XPU] = 1;
  CHECK_THAT(
      ofRequest(caller, callee, xpu(0)),
      Catch::EndsWith("options.set_device_map(\"b\", {\"xpu:0\": \"xpu:0\"})"));
}

TEST_CASE("a tensor without a real device cannot be mapped", "[unmapped_tensor]") {
  CHECK_THAT(
      ofRequest(worker("a", 2), worker("b", 2), c10::Device(c10::DeviceType::Meta)),
      Catch::EndsWith("A device map cannot help: a has no meta device at all."));
}

namespace {

const std::string kRejectedByFuture =
    "The result contained tensors residing on device(s) cuda:1 which are not among the expected "
    "device(s) (none)";

} // namespace

TEST_CASE("a value that a future rejects for its device gets the remedy", "[unmapped_tensor]") {
  DeviceRecord callee = worker("worker1", 2);
  callee.devices = {gpu(0)};
  CHECK(
      withRemedy(kRejectedByFuture, callee, worker("worker0", 2)) ==
      kRejectedByFuture +
          "\nA value of worker1 is on cuda:1, which no device map names: move it with .cpu() "
          "before "
          "the function returns it, or map the device.\n"
          "In the options of worker0, add:\n"
          "    options.set_device_map(\"worker1\", {1: 1})\n"
          "And in those of worker1:\n"
          "    options.set_devices([0, 1])");
}

TEST_CASE("the first of several devices counts", "[unmapped_tensor]") {
  CHECK_THAT(
      withRemedy(
          "The result contained tensors residing on device(s) cuda:1, cuda:0 and cuda:2 which are "
          "not among the expected device(s) cuda:3",
          worker("worker1", 3), worker("worker0", 3)),
      Catch::Contains("A value of worker1 is on cuda:1,"));
}

TEST_CASE("a future that loses its device while it completes says so", "[unmapped_tensor]") {
  const auto future = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
  future->markCompleted();
  std::string refused;
  try {
    future->setError(std::make_exception_ptr(std::runtime_error("cuda:1 is lost")));
  } catch (const c10::Error& e) {
    refused = e.what();
  }
  CHECK(
      withRemedy("Error on Node 1: " + refused, worker("worker1", 2), worker("worker0", 2)) ==
      "worker 'worker1' has no result for the call: a device has failed");
  const std::string ofUser = "Error on Node 1: RuntimeError: " + refused;
  CHECK(withRemedy(ofUser, worker("worker1", 2), worker("worker0", 2)) == ofUser);
}

TEST_CASE("other errors stay as they are", "[unmapped_tensor]") {
  const std::string strange =
      "The result contained tensors residing on device(s) nowhere which are not among the expected "
      "device(s) cuda:0";
  for (const std::string& error :
       {std::string(), std::string("ValueError: no"), strange, strange.substr(0, 70)}) {
    CHECK(withRemedy(error, worker("worker1", 2), worker("worker0", 2)) == error);
  }
}
