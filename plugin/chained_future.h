// A call that is made once another has ended.
#pragma once

#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>

namespace torchwire {

/// The future of the call that `next` makes, which is called with the value of `first` and returns a future. `next` runs with
/// the GIL where `first` ends: here, or on any thread and under no lock. A future of libtorch's that fails so keeps the error
/// alone: with what Python has raised, it would keep the frames, which may hold it. With the GIL.
std::shared_ptr<torch::jit::PythonFutureWrapper> chain(
    const std::shared_ptr<torch::jit::PythonFutureWrapper>& first, pybind11::function next);

} // namespace torchwire
