#include "plugin/call_future.h"

#include <utility>

#include "backend/agent/agent.h"

namespace py = pybind11;

namespace torchwire {
namespace {

using torch::jit::PythonFutureWrapper;

PyTypeObject* callFutureType = nullptr; // for good

} // namespace

CallFuture::CallFuture(
    c10::intrusive_ptr<Future> future, std::weak_ptr<Agent> agent, uint64_t callId,
    const c10::intrusive_ptr<Future>& creation)
    : PythonFutureWrapper(std::move(future)),
      agent(std::move(agent)),
      callId(callId),
      isCreation(creation),
      creation(creation) {}

void setCallFutureClass(const py::type& type) {
  callFutureType = reinterpret_cast<PyTypeObject*>(py::type(type).release().ptr());
}

// As pybind11 does it in a class's __init__, which would make a future of its own.
py::object instanceOf(std::shared_ptr<CallFuture> future) {
  auto object = py::reinterpret_steal<py::object>(
      callFutureType->tp_new(callFutureType, py::tuple().ptr(), nullptr));
  if (!object) {
    throw py::error_already_set();
  }
  auto* const instance = reinterpret_cast<py::detail::instance*>(object.ptr());
  py::detail::value_and_holder held = *py::detail::values_and_holders(instance).begin();
  const std::shared_ptr<PythonFutureWrapper> holder = std::move(future);
  held.value_ptr() = holder.get();
  held.type->init_instance(instance, &holder);
  return object;
}

CallFuture* callFutureIn(py::handle object) {
  if (Py_TYPE(object.ptr()) != callFutureType) { // which has no subclasses
    return nullptr;
  }
  auto* const instance = reinterpret_cast<py::detail::instance*>(object.ptr());
  py::detail::value_and_holder held = *py::detail::values_and_holders(instance).begin();
  if (!held.holder_constructed()) { // it comes from __new__()
    return nullptr;
  }
  return static_cast<CallFuture*>(held.value_ptr<PythonFutureWrapper>());
}

} // namespace torchwire
