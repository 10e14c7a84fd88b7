// A call that is made once another has ended.
#pragma once

#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>

namespace torchwire {

/// Completes `result` as the future that `next` returns, which is called with the value of `first`. `next` runs with the GIL
/// where `first` ends: here, or on any thread and under no lock. The result keeps no exception of Python's: with its frames
/// it would keep those that wait for the future, which may hold it. With the GIL.
void chain(
    const std::shared_ptr<torch::jit::PythonFutureWrapper>& first, pybind11::function next,
    const c10::intrusive_ptr<c10::ivalue::Future>& result);

} // namespace torchwire
