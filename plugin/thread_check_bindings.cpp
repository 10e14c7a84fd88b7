#include "plugin/thread_check_bindings.h"

#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <pybind11/stl.h>

#include "backend/base/annotations.h"
#include "backend/base/thread_role.h"
#include "backend/serve/response.h"
#include "plugin/gil_watch.h"

namespace py = pybind11;

namespace torchwire {
namespace {

using Deed = std::function<void()>;

/// Something that only a free thread may do. What it needs is made beforehand, with the GIL.
struct Violation {
  bool keepsGil; // meanwhile; else it is released before
  std::function<Deed()> prepare;
};

/// A deed that drops the last reference to `value`.
template <typename T>
Deed dropOf(T value) {
  return [kept = std::make_shared<std::optional<T>>(std::move(value))] { kept->reset(); };
}

at::Tensor numpyTensor() {
  const py::object array = py::module_::import("numpy").attr("zeros")(3);
  return py::module_::import("torch").attr("from_numpy")(array).cast<at::Tensor>();
}

py::object newObject() {
  return py::module_::import("builtins").attr("Exception")();
}

Deed acquire() {
  return [] { const py::gil_scoped_acquire gil; };
}

Deed acquireOnNewThread() {
  return [] {
    std::thread([] {
      const DeliverScope scope;
      const py::gil_scoped_acquire gil;
    }).join();
  };
}

Deed ensure() {
  return [] { PyGILState_Release(PyGILState_Ensure()); };
}

Deed releaseAndRestore() {
  return [] { const py::gil_scoped_release gil; };
}

Deed completeFuture() {
  auto future = c10::make_intrusive<torch::distributed::rpc::JitFuture>(messageType());
  return [future = std::move(future)] {
    complete(*future, messageOf({}, torch::distributed::rpc::MessageType::UNKNOWN));
  };
}

// The memory is NumPy's; the tensor itself is not known to Python.
Deed dropNumpyMemory() {
  return dropOf(numpyTensor().detach());
}

Deed dropNumpyTensor() {
  return dropOf(numpyTensor());
}

Deed dropHolder() {
  return dropOf(torch::jit::toIValue(newObject(), c10::PyObjectType::get()));
}

Deed dropObject() {
  return dropOf(newObject());
}

Violation violationOf(const std::string& what) {
  static const std::map<std::string, Violation> kAll = {
      {"acquire", {false, acquire}},
      {"acquire again", {true, acquire}},
      {"acquire on a new thread", {false, acquireOnNewThread}},
      {"ensure", {false, ensure}},
      {"ensure again", {true, ensure}},
      {"restore", {true, releaseAndRestore}},
      {"drop numpy memory", {false, dropNumpyMemory}},
      {"drop numpy memory again", {true, dropNumpyMemory}},
      {"drop a numpy tensor", {false, dropNumpyTensor}},
      {"drop a holder", {false, dropHolder}},
      {"drop a holder again", {true, dropHolder}},
      {"drop an object", {true, dropObject}},
      {"complete a future", {false, completeFuture}},
  };
  const auto found = kAll.find(what);
  if (found == kAll.end()) {
    throw std::invalid_argument("no such violation: " + what);
  }
  return found->second;
}

void commit(const Deed& deed, const std::string& where) {
  if (where == "free") {
    deed();
  } else if (where == "sending") {
    const SendScope scope;
    deed();
  } else if (where == "delivering") {
    const DeliverScope scope;
    deed();
  } else if (where == "locked") {
    Mutex mutex(LockRank::timer);
    MutexLock lock(mutex);
    deed();
  } else {
    throw std::invalid_argument("no such place: " + where);
  }
}

void violate(const std::string& what, const std::string& where) {
  if (!kThreadChecks) {
    throw std::runtime_error("the checks of threads are off: set TORCHWIRE_CHECK_THREADS=1");
  }
  const Violation violation = violationOf(what);
  const Deed deed = violation.prepare();
  std::optional<py::gil_scoped_release> released;
  if (!violation.keepsGil) {
    released.emplace();
  }
  commit(deed, where);
}

} // namespace

void bindThreadChecks(py::module_& module) {
  watchGil();
  module.def("_thread_checks_enabled", [] { return kThreadChecks; });
  module.def("_watched_gil_functions", &watchGil);
  module.def("_violate", &violate, py::arg("what"), py::arg("where"));
}

} // namespace torchwire
