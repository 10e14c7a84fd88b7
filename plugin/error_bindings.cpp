#include "plugin/error_bindings.h"

#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <string>

#include "backend/agent/forked_agent.h"
#include "backend/base/call_error.h"
#include "backend/base/interruption.h"
#include "backend/serve/remote_error.h"
#include "backend/serve/signals.h"
#include "backend/wire/failure.h"
#include "plugin/python_text.h"

namespace py = pybind11;

namespace torchwire {
namespace {

const char* classOf(FailureKind kind) {
  switch (kind) {
    case FailureKind::timedOut:
      return "CallTimedOut";
    case FailureKind::overloaded:
      return "Overloaded";
    case FailureKind::cancelled:
      return "CallCancelled";
    case FailureKind::workerDied:
      return "WorkerDied";
    case FailureKind::workerUnreachable:
      return "WorkerUnreachable";
    case FailureKind::other:
      break;
  }
  return "RpcError";
}

const char* wordFor(Executed executed) {
  return executed == Executed::no ? "no" : executed == Executed::yes ? "yes" : "unknown";
}

py::object made(const Error& error) {
  return toPython(error);
}

py::object made(const RemoteError& error) {
  if (error.detail().empty()) {
    return py::none();
  }
  return py::module_::import("torchwire.remote_errors")
      .attr("remade")(textOf(error.what()), py::bytes(error.detail()));
}

PyObject* builtinOf(const RemoteError& error) {
  switch (error.kind()) {
    case RemoteError::Kind::valueError:
      return PyExc_ValueError;
    case RemoteError::Kind::typeError:
      return PyExc_TypeError;
    case RemoteError::Kind::runtimeError:
      break;
  }
  return PyExc_RuntimeError;
}

/// As the error, or as a builtin exception where that cannot be made: Python may be about to end. What a handler of a signal
/// raises meanwhile goes before it.
template <typename CppError, typename What>
void raise(const CppError& cppError, const What& what, PyObject* builtin) {
  try {
    const py::object exception = made(what);
    if (!exception.is_none()) {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
      return;
    }
  } catch (py::error_already_set& e) {
    const bool isInterrupt = isOfHandler(e);
    e.restore();
    if (isInterrupt) {
      return;
    }
    PyErr_Clear();
  }
  PyErr_SetString(builtin, cppError.what());
}

void translate(std::exception_ptr exception) {
  if (!exception) {
    return;
  }
  try {
    std::rethrow_exception(exception);
  } catch (const CallError& e) {
    raise(e, e.error(), PyExc_RuntimeError);
  } catch (const RemoteError& e) {
    raise(e, e, builtinOf(e));
  } catch (const Interrupted&) {
    raisePendingSignal();
    PyErr_SetString(PyExc_RuntimeError, "init_rpc was interrupted: the main program has ended");
  } catch (const ForkedMeanwhile&) {
    raisePendingSignal();
    PyErr_SetString(PyExc_RuntimeError, ForkedAgent::refusalHere().c_str());
  }
}

} // namespace

py::object toPython(const Error& error) {
  const py::object worker = error.worker().empty() ? py::none() : textOf(error.worker());
  return py::module_::import("torchwire.errors")
      .attr(classOf(kindOf(error.code())))(
          textOf(error.message()), worker, wordFor(error.executed()));
}

void translateErrors() {
  py::register_exception_translator(&translate);
}

} // namespace torchwire
