#include "autograd/script_operator.h"

#include <torch/csrc/jit/runtime/operator.h>

#include <stdexcept>
#include <string>

#include "autograd/backward.h"

namespace torchwire {
namespace {

namespace jit = torch::jit;

constexpr auto kSchema =
    "aten::dist_backward(int context_id, Tensor[] roots, bool retain_graph=False) -> ()";

void run(jit::Stack& stack) {
  const bool retainGraph = jit::pop(stack).toBool();
  const auto roots = jit::pop(stack).toTensorVector();
  const int64_t contextId = jit::pop(stack).toInt();
  backward(contextId, roots, retainGraph);
}

} // namespace

void replaceScriptOperator() {
  const auto registered = jit::getOperatorForLiteral(kSchema);
  if (registered == nullptr) {
    throw std::runtime_error(
        std::string("torchwire cannot serve TorchScript's backward: this torch has no operator ") +
        kSchema + "; install a release that torchwire supports");
  }
  // Overwritten in its place, and not deregistered and registered anew: graphs that are compiled already point to
  // this object, would be left with a dangling pointer, and would go on to libtorch's engine at best.
  *registered = jit::Operator(kSchema, run, c10::AliasAnalysisKind::CONSERVATIVE);
}

} // namespace torchwire
