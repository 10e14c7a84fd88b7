#include "backend/serve/script_call_writer.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torchwire {
namespace {

namespace py = pybind11;
namespace rpc = torch::distributed::rpc;
using rpc::Message;
using torch::jit::Operator;
using torch::jit::Stack;

constexpr std::string_view kAten = "aten::";

/// An overload, and its schema as it is sent, which takes libtorch longer to write than the rest of a call.
struct Overload {
  std::shared_ptr<Operator> op;
  std::string schema;
};

/// Adds to `key` what decides whether a schema takes the argument: its type. False where its value does, too.
bool addType(std::string& key, py::handle argument) {
  PyObject* const object = argument.ptr();
  if (THPVariable_Check(object)) {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    key.push_back('T');
    return tensor.numel() != 1 && !tensor.has_names(); // one element may stand for a number
  }
  if (PyLong_CheckExact(object)) {
    int overflow = 0;
    PyLong_AsLongLongAndOverflow(object, &overflow);
    key.push_back('i');
    return overflow == 0;
  }
  const bool isFloat = PyFloat_CheckExact(object);
  key.push_back(isFloat ? 'f' : PyBool_Check(object) ? 'b' : 'n');
  return isFloat || PyBool_Check(object) || argument.is_none();
}

/// The name and the types of the arguments; nullopt where those do not decide which overload takes them.
std::optional<std::string> keyOf(
    const std::string& name, const py::args& args, const py::kwargs& kwargs) {
  std::string key = name + '(';
  for (const py::handle argument : args) {
    if (!addType(key, argument)) {
      return std::nullopt;
    }
  }
  for (const auto& [argument, value] : kwargs) {
    key += ',' + py::cast<std::string>(argument) + '=';
    if (!addType(key, value)) {
      return std::nullopt;
    }
  }
  return key;
}

/// Tries the overloads in turn, those of c10 first. An attempt that fails throws, which costs more than the rest of a call.
std::pair<std::shared_ptr<Operator>, Stack> search(
    const std::string& name, const py::args& args, const py::kwargs& kwargs) {
  const auto symbol = c10::Symbol::fromQualString(name);
  TORCH_CHECK(symbol.is_aten(), "Failed to match operator name ", name, " to a builtin operator");
  std::vector<std::shared_ptr<Operator>> overloads = torch::jit::getAllOperatorsFor(symbol);
  const auto others = std::stable_partition(
      overloads.begin(), overloads.end(), [](const auto& op) { return op->isC10Op(); });
  const std::vector<std::shared_ptr<Operator>> ofC10(overloads.begin(), others);
  try {
    return torch::jit::getOpWithStack(ofC10, args, kwargs);
  } catch (const std::runtime_error&) { // an error of Python's, too
    return torch::jit::getOpWithStack({others, overloads.end()}, args, kwargs);
  }
}

/// The overload, and the arguments as it takes them.
std::pair<Overload, Stack> match(
    const std::string& name, const py::args& args, const py::kwargs& kwargs) {
  // Guarded by the GIL. As many as a program calls operators, times the types of arguments that it passes.
  static auto& known = *new std::unordered_map<std::string, Overload>;
  const auto key = keyOf(name, args, kwargs);
  const auto found = key ? known.find(*key) : known.end();
  if (found != known.end()) {
    return {
        found->second,
        torch::jit::createStackForSchema(found->second.op->schema(), args, kwargs, std::nullopt)};
  }
  auto [op, stack] = search(name, args, kwargs);
  Overload overload{op, toString(op->schema())};
  if (key) {
    known.emplace(*key, overload);
  }
  return {std::move(overload), std::move(stack)};
}

/// What libtorch makes of the values of a ScriptCall.
c10::intrusive_ptr<Message> messageOf(Stack values) {
  std::vector<at::Tensor> tensors;
  auto body = torch::jit::pickle(c10::ivalue::Tuple::create(std::move(values)), &tensors);
  return c10::make_intrusive<Message>(
      std::move(body), std::move(tensors), rpc::MessageType::SCRIPT_CALL);
}

} // namespace

ScriptRequest writeOperatorCall(
    const std::string& name, const py::args& args, const py::kwargs& kwargs) {
  auto [overload, values] = match(name, args, kwargs);
  values.emplace_back(std::move(overload.schema));
  values.emplace_back("torch.ops.aten." + overload.op->schema().name().substr(kAten.size()));
  return {messageOf(std::move(values)), c10::PyObjectType::get()};
}

ScriptRequest writeFunctionCall(
    const std::string& name, const py::args& args, const py::kwargs& kwargs, bool isAsync) {
  const c10::QualifiedName qualified(name);
  const c10::FunctionSchema& schema =
      torch::jit::get_python_cu()->get_function(qualified).getSchema();
  rpc::ScriptCall call(
      qualified, torch::jit::createStackForSchema(schema, args, kwargs, std::nullopt), isAsync);
  const auto& returns = schema.returns();
  TORCH_CHECK(
      returns.size() == 1,
      "Return value of an annotated torchScript function should be a single IValue.");
  return {std::move(call).toMessage(), returns.front().type()};
}

at::IValue readScriptResult(const Message& response) {
  return rpc::deserializeRespToIValue(response);
}

at::IValue readOperatorResult(const Message& response) {
  at::IValue value = readScriptResult(response);
  if (value.isTensor()) { // which Python knows by one object
    return value;
  }
  const py::gil_scoped_acquire gil;
  return torch::jit::toIValue(torch::jit::toPyObject(std::move(value)), c10::PyObjectType::get());
}

} // namespace torchwire
