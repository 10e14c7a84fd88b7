#include "plugin/chained_future.h"

#include <cxxabi.h>

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "backend/serve/direct_call.h"
#include "backend/serve/signals.h"

namespace py = pybind11;

namespace torchwire {
namespace {

using Future = c10::ivalue::Future;
using torch::jit::PythonFunctionGuard;
using torch::jit::PythonFutureWrapper;
using Wrapper = std::shared_ptr<PythonFutureWrapper>;

/// The error as a future may keep it. What a handler of a signal has raised is raised later.
std::exception_ptr keepable(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const py::error_already_set& e) {
    const py::gil_scoped_acquire gil;
    try {
      if (!isOfHandler(e)) {
        return std::make_exception_ptr(withoutFrames(e, py::str(e.value()).cast<std::string>()));
      }
      raiseLater(e);
    } catch (const py::error_already_set&) { // of its own methods, or it is no Exception
    }
    return std::make_exception_ptr(std::runtime_error(e.what()));
  } catch (...) {
    return error;
  }
}

/// What `body` returns, which runs with the GIL. If it throws, the future fails so, and it returns nothing.
template <typename Body>
auto orFail(Future& future, Body body) -> decltype(body()) {
  try {
    const py::gil_scoped_acquire gil;
    return body();
  } catch (abi::__forced_unwind&) { // by which a daemon thread leaves Python as that ends
    throw;
  } catch (...) {
    future.setError(keepable(std::current_exception()));
    return {};
  }
}

void completeAs(Future& result, PythonFutureWrapper& source) {
  auto value = orFail(result, [&]() -> std::optional<c10::IValue> {
    return torch::jit::toIValue(source.value(), c10::PyObjectType::get());
  });
  if (value) {
    result.markCompleted(std::move(*value));
  }
}

} // namespace

void chain(const Wrapper& first, py::function next, const c10::intrusive_ptr<Future>& result) {
  // Wherever it is dropped, it takes the GIL for it.
  auto kept = std::make_shared<PythonFunctionGuard>(std::move(next));
  first->fut->addCallback([result, first, kept = std::move(kept)](Future&) {
    const auto second =
        orFail(*result, [&] { return kept->func_(first->value()).cast<Wrapper>(); });
    if (second) {
      second->fut->addCallback([result, second](Future&) { completeAs(*result, *second); });
    }
  });
}

} // namespace torchwire
