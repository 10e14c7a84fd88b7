// The module torchwire_test_accelerator. Importing it registers the accelerator, and starts no thread.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "test/support/accelerator/device.h"
#include "test/support/accelerator/hooks.h"
#include "test/support/accelerator/pinned_memory.h"

namespace torchwire::accelerator {
namespace {

namespace py = pybind11;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

/// Throws ValueError for a device that there is not.
Device& checkedDevice(int index) {
  if (index < 0 || index >= deviceCount()) {
    throw py::value_error("there is no device standin:" + std::to_string(index));
  }
  return device(static_cast<c10::DeviceIndex>(index));
}

/// Calls it with the stream, or with all of the device's.
template <typename Function>
void forStreams(int index, std::optional<int64_t> stream, Function function) {
  Device& device = checkedDevice(index);
  if (stream) {
    function(device.stream(*stream));
    return;
  }
  for (const auto& one : device.streams()) {
    function(*one);
  }
}

void failNext(const std::string& kind, int index) {
  Device& device = checkedDevice(index);
  if (kind == "allocation") {
    device.health.failNextAllocation();
  } else if (kind == "pinned_allocation") {
    failNextPinnedAllocation();
  } else if (kind == "work") {
    device.health.failNextWork();
  } else {
    throw py::value_error(
        "kind is 'allocation', 'pinned_allocation' or 'work', not '" + kind + "'");
  }
}

/// Keeps the GIL.
py::dict stats() {
  py::list allocated;
  size_t writes = pinnedWritesAfterFree();
  for (c10::DeviceIndex index = 0; index < deviceCount(); ++index) {
    allocated.append(device(index).memory.allocatedBytes());
    writes += device(index).memory.writesAfterFree();
  }
  py::dict all;
  all["waits"] = waitCounts();
  all["allocated_bytes"] = allocated;
  all["pinned_bytes"] = pinnedBytes();
  all["writes_after_free"] = writes;
  all["threads"] = WorkStream::threads();
  return all;
}

PYBIND11_MODULE(torchwire_test_accelerator, module) {
  registerHooks();
  module.doc() = "A stand-in accelerator on PyTorch's PrivateUse1; see accelerator.py.";
  module.def("device_count", [] { return static_cast<int>(deviceCount()); });
  module.def(
      "hold",
      [](int device, std::optional<int64_t> stream) {
        forStreams(device, stream, [](WorkStream& one) { one.hold(); });
      },
      py::arg("device"), py::arg("stream") = py::none(), ReleaseGil(),
      "No work of the device, or of the stream with this id, begins until it is released.");
  module.def(
      "release",
      [](int device, std::optional<int64_t> stream) {
        forStreams(device, stream, [](WorkStream& one) { one.release(); });
      },
      py::arg("device"), py::arg("stream") = py::none(), ReleaseGil());
  module.def(
      "synchronize", [](int device) { checkedDevice(device).synchronize(Wait::device); },
      py::arg("device"), ReleaseGil());
  module.def(
      "fail_next", &failNext, py::arg("kind"), py::arg("device") = 0,
      "The next 'allocation' or 'pinned_allocation' is out of memory; with 'work', the next work "
      "is the device's last.");
  module.def(
      "recover", [](int device) { checkedDevice(device).health.recover(); }, py::arg("device"),
      "Makes a lost device work again, and forgets the failures that were ordered.");
  module.def("stats", &stats);
  module.def("reset_waits", &resetWaitCounts, "Forgets who has waited until now.");
  // Before the interpreter, and libtorch's static objects, go: the streams' threads run libtorch's kernels.
  py::module_::import("atexit").attr("register")(py::cpp_function(&shutDown, ReleaseGil()));
}

} // namespace
} // namespace torchwire::accelerator
