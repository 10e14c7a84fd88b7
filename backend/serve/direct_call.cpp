#include "backend/serve/direct_call.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/codec/python_codec.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/python_rpc.h"
#include "backend/serve/python_value.h"
#include "backend/serve/remote_error.h"
#include "backend/serve/response.h"
#include "backend/serve/signals.h"

namespace torchwire {
namespace {

namespace py = pybind11;
namespace rpc = torch::distributed::rpc;
using c10::ivalue::PyObjectHolder;
using rpc::JitFuture;
using rpc::Message;
using rpc::MessageType;
using namespace own_messages::direct_body;

constexpr size_t kUsualLength = 128;

bool needPickle(const std::vector<at::Tensor>& tensors) {
  return !tensors.empty() && PythonRpc::get().hasReducer(THPVariableClass);
}

c10::intrusive_ptr<Message> writeResult(const py::object& result) {
  std::vector<char> body;
  std::vector<at::Tensor> tensors;
  body.push_back(kResult);
  if (!PythonWriter(body, tensors).value(result.ptr()) || needPickle(tensors)) {
    auto [pickle, pickledTensors] = PythonRpc::get().pickled(result);
    body.assign(pickle.begin(), pickle.end());
    tensors = std::move(pickledTensors);
  }
  return c10::make_intrusive<Message>(std::move(body), std::move(tensors), MessageType::PYTHON_RET);
}

py::object unpickle(const char* data, size_t length, const std::vector<at::Tensor>& tensors) {
  return PythonRpc::get().deserialize(py::bytes(data, length), tensors);
}

/// The PythonUDF; or, as libtorch has it, the AttributeError that says why there is none. Takes the tensors out, so that
/// the last to hold one that Python knows is not who would have to take the GIL for it.
py::object readCall(Message& request) {
  const auto& body = std::as_const(request).payload();
  const std::vector<at::Tensor> tensors = std::move(request.tensors());
  ByteReader in(body.data() + 1, body.size() - 1);
  PythonReader reader(in, tensors, readDirectRRef);
  std::vector<char> missing;
  py::object function = reader.global(missing);
  if (!function) { // which is imported, or its absence explained, by pickle
    function = unpickle(missing.data(), missing.size(), {});
    if (PyObject_IsInstance(function.ptr(), PyExc_AttributeError) == 1) {
      return function;
    }
  }
  const py::object args = reader.value();
  const py::object kwargs = reader.value();
  if (in.remaining() != 0) {
    function = PythonRpc::get().InContext(function, reader.value());
  }
  return PythonRpc::get().PythonUDF(function, args, kwargs);
}

bool isDirect(const Message& response) {
  const auto& body = response.payload();
  return !body.empty() && body.front() == kResult;
}

py::object readDirect(const std::vector<char>& body, const std::vector<at::Tensor>& tensors) {
  ByteReader in(body.data() + 1, body.size() - 1);
  return PythonReader(in, tensors).value();
}

RemoteError::Kind kindOf(const py::error_already_set& error) {
  return error.matches(PyExc_ValueError) ? RemoteError::Kind::valueError
      : error.matches(PyExc_TypeError)   ? RemoteError::Kind::typeError
                                         : RemoteError::Kind::runtimeError;
}

/// What Python makes the same exception from; empty where it cannot.
std::string detailOf(const py::error_already_set& error) {
  try {
    return py::module_::import("torchwire.remote_errors")
        .attr("detail_of")(error.value())
        .cast<std::string>();
  } catch (const py::error_already_set& e) {
    if (isOfHandler(e)) {
      raiseLater(e);
    }
    return {};
  }
}

/// Throws what is no error of the result: what a handler of a signal has raised, or no Exception.
void expectRemote(const py::error_already_set& e) {
  if (isOfHandler(e)) {
    throwInterruption(e);
  }
  if (!e.matches(PyExc_Exception)) {
    throw e;
  }
}

/// The result, unless it is what a function has raised: that is thrown, in the words that PyTorch has for it.
py::object raisingRemote(py::object result) {
  const auto& python = PythonRpc::get();
  if (python.isRemoteException(result)) {
    const auto detail = py::getattr(result, "detail", py::bytes()).cast<std::string>();
    try {
      python.handleException(result);
    } catch (py::error_already_set& e) {
      expectRemote(e);
      throw RemoteError(e.what(), kindOf(e), detail);
    }
  }
  return result;
}

/// What `read` makes of a result. A signal's handler runs before it, so that what it raises is not taken for an error of the
/// result.
template <typename Read>
py::object readResult(Read read) {
  if (handlesSignals()) {
    runSignalHandlers();
  }
  try {
    return read();
  } catch (py::error_already_set& e) {
    throw withoutFrames(e, e.what());
  }
}

c10::intrusive_ptr<JitFuture> failedFuture(const std::exception_ptr& error) {
  auto future = c10::make_intrusive<JitFuture>(messageType());
  future->setError(error);
  return future;
}

/// With the GIL.
at::IValue holding(const py::object& object) {
  return torch::jit::toIValue(object, at::PyObjectType::get());
}

/// The result of a direct call, as bytes and tensors until it is asked for.
class LazyResult final : public PyObjectHolder {
 public:
  explicit LazyResult(c10::intrusive_ptr<Message> response) : response_(std::move(response)) {}

  PyObject* getPyObject() override { // with the GIL
    if (!object_) {
      // Python may run another thread meanwhile, that does the same.
      const auto response = response_;
      at::IValue made = holding(
          readDirect(std::as_const(*response).payload(), std::as_const(*response).tensors()));
      if (!object_) {
        object_ = made.toPyObjectHolder();
        response_.reset();
      }
    }
    return object_->getPyObject();
  }
  c10::InferredType tryToInferType() override {
    return made().tryToInferType();
  }
  at::IValue toIValue(const c10::TypePtr& type, std::optional<int32_t> length) override {
    return made().toIValue(type, length);
  }
  std::string toStr() override {
    return made().toStr();
  }
  std::vector<at::Tensor> extractTensors() override {
    return made().extractTensors();
  }

 private:
  PyObjectHolder& made() {
    const py::gil_scoped_acquire gil;
    getPyObject();
    return *object_;
  }

  c10::intrusive_ptr<Message> response_;
  c10::intrusive_ptr<PyObjectHolder> object_;
};

/// What goes with the GIL held.
struct Held {
  py::object object;
  Held() = default;
  ~Held() {
    const py::gil_scoped_acquire gil;
    object = py::object();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
};

c10::intrusive_ptr<JitFuture> serveAsync(
    const rpc::RequestCallbackImpl& callback, Message& request) {
  Held call;
  {
    const MeasuredGil gil;
    call.object = readCall(request);
  }
  return runPython(callback, call.object, /* isAsyncExecution */ true)
      ->then(
          [](JitFuture& result) {
            const MeasuredGil gil;
            return withDeviceStorages(writeResult(torch::jit::toPyObject(result.value())));
          },
          messageType());
}

} // namespace

c10::intrusive_ptr<Message> writeDirectCall(
    PyObject* function, PyObject* args, PyObject* kwargs, bool isAsync, DirectRRefs& rrefs) {
  py::object wrapped;
  py::object context;
  if (reinterpret_cast<PyObject*>(Py_TYPE(function)) == PythonRpc::get().InContext.ptr()) {
    wrapped = py::getattr(function, "function");
    context = py::getattr(function, "carrier");
    function = wrapped.ptr();
  }
  std::vector<char> body;
  std::vector<at::Tensor> tensors;
  body.reserve(kUsualLength);
  body.push_back(isAsync ? kAsyncCall : kCall);
  PythonWriter writer(body, tensors, [&rrefs](PyObject* object, ByteWriter& out) {
    return rrefs.write(object, out);
  });
  if (!writer.global(function) || !writer.value(args) || !writer.value(kwargs) ||
      (context && !writer.value(context.ptr())) || needPickle(tensors)) {
    return {};
  }
  return c10::make_intrusive<Message>(
      std::move(body), std::move(tensors), MessageType::PYTHON_CALL);
}

c10::intrusive_ptr<JitFuture> serveDirectCall(
    const rpc::RequestCallbackImpl& callback, Message& request) {
  if (std::as_const(request).payload().front() == kAsyncCall) {
    return serveAsync(callback, request);
  }
  c10::intrusive_ptr<Message> response;
  std::exception_ptr failed;
  {
    const MeasuredGil gil;
    const py::object call = readCall(request);
    try {
      response = writeResult(PythonRpc::get().runFunction(call));
    } catch (py::error_already_set& e) { // no Exception, or runFunction would have caught it
      failed = std::make_exception_ptr(std::runtime_error(e.what()));
    } catch (const std::exception&) { // of the result's pickling
      failed = std::current_exception();
    }
  }
  return failed ? failedFuture(failed) : completed(std::move(response));
}

RemoteError withoutFrames(const py::error_already_set& raised, const std::string& text) {
  expectRemote(raised);
  return RemoteError(text, kindOf(raised), detailOf(raised));
}

c10::intrusive_ptr<Message> unwrapped(c10::intrusive_ptr<Message> response) {
  if (response->type() != MessageType::FORWARD_AUTOGRAD_RESP) {
    return response;
  }
  MessageType wrapped = response->type();
  const auto result = rpc::deserializeResponse(*response, wrapped);
  TORCH_CHECK(
      wrapped == MessageType::PYTHON_RET, "a response of type ", wrapped,
      " to a call of a Python function");
  return std::move(*result).toMessage();
}

py::object readDirectResult(Message& response) {
  if (!isDirect(response)) {
    return readPickledResult(response);
  }
  const std::vector<at::Tensor> tensors = std::move(response.tensors());
  return readResult([&] { return readDirect(std::as_const(response).payload(), tensors); });
}

py::object readPickledResult(Message& response) {
  const auto& body = std::as_const(response).payload();
  const std::vector<at::Tensor> tensors = std::move(response.tensors());
  return readResult([&] { return raisingRemote(unpickle(body.data(), body.size(), tensors)); });
}

py::object readFetched(const rpc::SerializedPyObj& value) {
  if (handlesSignals()) {
    runSignalHandlers();
  }
  py::object read = unpickle(value.payload_.data(), value.payload_.size(), value.tensors_);
  if (PythonRpc::get().isRemoteException(read)) {
    PythonRpc::get().raiseRemote(read);
  }
  return read;
}

at::IValue directResult(c10::intrusive_ptr<Message> response) {
  if (!isDirect(*response)) {
    return pickledResult(std::move(response));
  }
  return at::IValue(
      c10::intrusive_ptr<PyObjectHolder>(c10::make_intrusive<LazyResult>(std::move(response))));
}

at::IValue pickledResult(c10::intrusive_ptr<Message> response) {
  response = unwrapped(std::move(response));
  const MeasuredGil gil;
  return holding(readPickledResult(*response));
}

} // namespace torchwire
