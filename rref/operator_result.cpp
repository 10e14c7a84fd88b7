#include "rref/operator_result.h"

#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

namespace torchwire {
namespace {

namespace py = pybind11;
using Operator = std::shared_ptr<torch::jit::Operator>;

bool hasOneResult(const Operator& candidate) {
  return candidate->schema().returns().size() == 1;
}

bool matches(const Operator& candidate, const py::args& args, const py::kwargs& kwargs) {
  try {
    torch::jit::createStackForSchema(candidate->schema(), args, kwargs, std::nullopt);
    return true;
  } catch (const std::exception&) { // it takes other arguments
    return false;
  }
}

} // namespace

void expectOneResult(
    const std::string& operatorName, const py::args& args, const py::kwargs& kwargs) {
  auto candidates = torch::jit::getAllOperatorsFor(at::Symbol::fromQualString(operatorName));
  if (std::all_of(candidates.begin(), candidates.end(), hasOneResult)) { // as nearly always
    return;
  }
  // In the order in which libtorch tries them.
  std::stable_partition(candidates.begin(), candidates.end(), [](const Operator& candidate) {
    return candidate->isC10Op();
  });
  const auto chosen = std::find_if(
      candidates.begin(), candidates.end(),
      [&](const auto& candidate) { return matches(candidate, args, kwargs); });
  if (chosen != candidates.end() && !hasOneResult(*chosen)) {
    const size_t results = (*chosen)->schema().returns().size();
    throw std::invalid_argument(
        "rpc.remote: the operator " + operatorName + " returns " +
        (results == 0 ? "nothing" : std::to_string(results) + " values") +
        ", and an RRef to an operator's result holds one: call it in a Python function, and pass "
        "that "
        "function to rpc.remote");
  }
}

} // namespace torchwire
