#include "backend/serve/script_call_reader.h"

#include <ATen/core/ivalue_inl.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <utility>
#include <vector>

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using Values = std::vector<at::IValue>;

// The last value of a builtin operator's call begins so; the one before is the schema.
constexpr char kBuiltin[] = "torch.ops.aten.";

/// The way to what libtorch makes a call of.
struct FromValues : rpc::ScriptCall {
  using rpc::ScriptCall::fromIValues;
};

Values valuesOf(const rpc::Message& message) {
  const auto& payload = message.payload();
  const at::IValue value = torch::jit::unpickle(
      payload.data(), payload.size(), *rpc::RpcAgent::getCurrentRpcAgent()->getTypeResolver(),
      message.tensors());
  return value.toTupleRef().elements().vec();
}

bool isBuiltin(const Values& values) {
  return values.size() >= 2 && values.back().isString() &&
      values.back().toStringRef().starts_with(kBuiltin) && values[values.size() - 2].isString();
}

} // namespace

std::unique_ptr<rpc::ScriptCall> ScriptCallReader::read(const rpc::Message& message) {
  Values values = valuesOf(message);
  if (!isBuiltin(values)) {
    return FromValues::fromIValues(values);
  }
  const std::string schema = values[values.size() - 2].toStringRef();
  if (Operator known = find(schema)) {
    values.resize(values.size() - 2);
    return std::make_unique<rpc::ScriptCall>(std::move(known), std::move(values));
  }
  auto call = FromValues::fromIValues(values);
  MutexLock lock(mutex_);
  operators_.emplace(schema, call->op());
  return call;
}

ScriptCallReader::Operator ScriptCallReader::find(const std::string& schema) const {
  MutexLock lock(mutex_);
  const auto it = operators_.find(schema);
  return it == operators_.end() ? nullptr : it->second;
}

} // namespace torchwire
