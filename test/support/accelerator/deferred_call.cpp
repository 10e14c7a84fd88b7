#include "test/support/accelerator/deferred_call.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/List.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include "test/support/accelerator/launch.h"

namespace torchwire::accelerator {
namespace {

using torch::jit::Stack;
using Mapping = std::function<std::optional<at::Tensor>(const at::Tensor&)>;

// ---- whether it can be ----------------------------------------------------------------------------

bool isTensors(const c10::Type& type) {
  return type.kind() == c10::TypeKind::TensorType ||
      (type.kind() == c10::TypeKind::ListType &&
       type.containedType(0)->kind() == c10::TypeKind::TensorType);
}

/// Their meta kernels and CPU kernels differ in the sizes of the statistics that they save.
bool isBatchNorm(const std::string& name) {
  return name.find("batch_norm") != std::string::npos;
}

bool hasKnownResults(const c10::OperatorHandle& op) {
  for (const at::Tag tag :
       {at::Tag::nondeterministic_seeded, at::Tag::dynamic_output_shape,
        at::Tag::data_dependent_output}) {
    if (op.hasTag(tag)) {
      return false;
    }
  }
  const auto& returns = op.schema().returns();
  return !isBatchNorm(op.schema().name()) &&
      op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta) &&
      op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) &&
      std::all_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
        const c10::AliasInfo* const alias = result.alias_info();
        return isTensors(*result.type()) && (alias == nullptr || alias->isWrite());
      });
}

// ---- arguments ------------------------------------------------------------------------------------

template <typename List>
std::optional<c10::IValue> mappedList(List list, const Mapping& mapping) {
  List mapped = list.copy();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::optional<at::Tensor> tensor = list.get(i);
    if (!tensor) {
      continue;
    }
    std::optional<at::Tensor> other = mapping(*tensor);
    if (!other) {
      return std::nullopt;
    }
    mapped.set(i, *std::move(other));
  }
  return mapped;
}

/// The argument with other tensors, and for a device; nothing if a tensor has no counterpart.
std::optional<c10::IValue> mapped(
    const c10::IValue& value, const Mapping& mapping, c10::DeviceType device) {
  if (value.isTensor()) {
    if (!value.toTensor().defined()) {
      return value;
    }
    std::optional<at::Tensor> tensor = mapping(value.toTensor());
    return tensor ? std::optional<c10::IValue>(*std::move(tensor)) : std::nullopt;
  }
  if (value.isTensorList()) {
    return mappedList(value.toTensorList(), mapping);
  }
  if (value.isOptionalTensorList()) {
    return mappedList(value.toOptionalTensorList(), mapping);
  }
  if (value.isDevice() && value.toDevice().type() == kType) {
    return c10::IValue(c10::Device(device));
  }
  if (value.isGenerator() || value.isStorage() || value.isStream() || value.isObject()) {
    return std::nullopt;
  }
  return value;
}

std::optional<Stack> mapped(
    const std::vector<c10::IValue>& arguments, const Mapping& mapping, c10::DeviceType device) {
  Stack stack;
  for (const c10::IValue& argument : arguments) {
    std::optional<c10::IValue> other = mapped(argument, mapping, device);
    if (!other) {
      return std::nullopt;
    }
    stack.push_back(*std::move(other));
  }
  return stack;
}

std::optional<at::Tensor> metaOf(const at::Tensor& tensor) {
  if (!isOnDevice(
          tensor)) { // a number stays what it is; others cannot be read before the work runs
    return tensor.dim() == 0 ? std::optional<at::Tensor>(tensor) : std::nullopt;
  }
  at::Tensor meta = at::empty_strided(
      tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()).device(at::kMeta));
  keepNumber(tensor, meta);
  return meta;
}

std::optional<at::Tensor> cpuOf(const at::Tensor& tensor) {
  if (isOnDevice(tensor)) {
    return hostView(tensor);
  }
  at::Tensor taken = tensor.clone();
  keepNumber(tensor, taken);
  return taken;
}

/// The device that all of the arguments' tensors are on; null if there is none.
Device* deviceOfAll(const std::vector<c10::IValue>& arguments) {
  Device* found = nullptr;
  const Mapping look = [&found](const at::Tensor& tensor) -> std::optional<at::Tensor> {
    if (isOnDevice(tensor)) {
      TORCH_CHECK(
          found == nullptr || found == &deviceOf(tensor),
          "expected all tensors to be on the same device, but found at least two: standin:",
          found->index, " and ", tensor.device());
      found = &deviceOf(tensor);
    }
    return tensor;
  };
  mapped(arguments, look, kType);
  return found;
}

/// The caller keeps the arguments: libtorch drops the stack's before it takes hold of those that a kernel returns
/// several of.
Stack call(const c10::OperatorHandle& op, c10::DispatchKey key, const Stack& arguments) {
  Stack stack = arguments;
  op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
  return stack;
}

// ---- results --------------------------------------------------------------------------------------

std::vector<at::Tensor> tensorsIn(const c10::IValue& value) {
  return value.isTensor() ? std::vector<at::Tensor>{value.toTensor()} : value.toTensorVector();
}

/// Whether the operator leaves what it writes to in its size.
bool keepsSizes(const std::vector<c10::IValue>& arguments, const Stack& afterwards) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!afterwards[i].isTensor() || !afterwards[i].toTensor().defined()) {
      continue;
    }
    if (arguments[i].toTensor().sizes() != afterwards[i].toTensor().sizes()) {
      return false;
    }
  }
  return true;
}

at::Tensor emptyLike(const at::Tensor& meta, Device& device) {
  if (!meta.defined()) {
    return meta;
  }
  const c10::Device where(kType, static_cast<c10::DeviceIndex>(device.index));
  return at::empty_strided(
      meta.sizes(), meta.strides(), at::TensorOptions(meta.scalar_type()).device(where));
}

c10::IValue emptyLike(const c10::IValue& meta, Device& device) {
  if (meta.isTensor()) {
    return emptyLike(meta.toTensor(), device);
  }
  c10::List<at::Tensor> made;
  for (const at::Tensor& tensor : tensorsIn(meta)) {
    made.push_back(emptyLike(tensor, device));
  }
  return made;
}

/// The argument that the operator writes to and returns as this result.
const c10::IValue& writtenArgument(
    const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments,
    const c10::AliasInfo& result) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() && alias->beforeSets() == result.beforeSets()) {
      return arguments[i];
    }
  }
  TORCH_CHECK(false, schema.name(), " returns what it does not take");
}

/// What the call returns at once, and which of it the work has to fill.
struct Results {
  Stack returned;
  std::vector<std::pair<size_t, std::vector<at::Tensor>>> toFill; // by the number of the result
};

Results resultsOf(
    const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments,
    const Stack& metas, Device& device) {
  Results results;
  for (size_t i = 0; i < metas.size(); ++i) {
    if (const c10::AliasInfo* const alias = schema.returns()[i].alias_info()) {
      results.returned.push_back(writtenArgument(schema, arguments, *alias));
      continue;
    }
    results.returned.push_back(emptyLike(metas[i], device));
    std::vector<at::Tensor> views;
    for (const at::Tensor& tensor : tensorsIn(results.returned.back())) {
      views.push_back(tensor.defined() ? hostView(tensor) : tensor);
    }
    results.toFill.emplace_back(i, std::move(views));
  }
  return results;
}

/// On the stream's thread.
void fill(
    const std::string& name, const std::vector<at::Tensor>& views,
    const std::vector<at::Tensor>& computed) {
  TORCH_CHECK(views.size() == computed.size(), name, " returned another number of tensors");
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].defined()) {
      TORCH_CHECK(
          views[i].sizes() == computed[i].sizes(), name,
          " returned a tensor of another size than its meta kernel said");
      views[i].copy_(computed[i]);
    }
  }
}

/// The results as tensors without memory; nothing if the operator cannot say, or objects to the arguments: the kernel
/// itself then says what is wrong.
std::optional<Stack> metaResults(
    const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  const std::optional<Stack> before = mapped(arguments, &metaOf, at::kMeta);
  if (!before) {
    return std::nullopt;
  }
  try {
    Stack results = call(op, c10::DispatchKey::Meta, *before);
    return keepsSizes(arguments, *before) ? std::optional<Stack>(std::move(results)) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

} // namespace

bool callLater(const c10::OperatorHandle& op, Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const std::vector<c10::IValue> arguments(stack.end() - static_cast<long>(count), stack.end());
  Device* const device = deviceOfAll(arguments);
  if (device == nullptr || !hasKnownResults(op)) {
    return false;
  }
  const std::optional<Stack> metas = metaResults(op, arguments);
  std::optional<Stack> inputs = metas ? mapped(arguments, &cpuOf, at::kCPU) : std::nullopt;
  if (!inputs) {
    return false;
  }
  Results results = resultsOf(schema, arguments, *metas, *device);
  launch(
      *device, currentWorkStream(*device),
      [op, inputs = *std::move(inputs), toFill = std::move(results.toFill)] {
        const Stack computed = call(op, c10::DispatchKey::CPU, inputs);
        for (const auto& [index, views] : toFill) {
          fill(op.schema().name(), views, tensorsIn(computed[index]));
        }
      });
  torch::jit::drop(stack, count);
  std::move(results.returned.begin(), results.returned.end(), std::back_inserter(stack));
  return true;
}

} // namespace torchwire::accelerator
