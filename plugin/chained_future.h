// A call that is made once another has ended.
#pragma once

#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>

namespace torchwire {

/// The future of the call that `next` makes, which is called with the value of `first` and returns a future. `next` runs with
/// the GIL where `first` ends: here, or on any thread and under no lock. The future keeps no exception of
/// Python's: with its frames it would keep those that wait for the future, which may hold it. With the GIL.
std::shared_ptr<torch::jit::PythonFutureWrapper> chain(
    const std::shared_ptr<torch::jit::PythonFutureWrapper>& first, pybind11::function next);

} // namespace torchwire
