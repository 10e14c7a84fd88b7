// An operator that is called now and runs later, on a stream.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torchwire::accelerator {

/// Takes the call's arguments from the stack and puts its results there, which are filled when the work has run: its
/// CPU kernel, on the current stream of the tensors' device and directly in the device's memory.
/// False, with the stack as it was, for what cannot be called so: where the results' sizes are not known beforehand, or
/// are no tensors; where random numbers are drawn, whose order would be any; and where the arguments are wrong.
bool callLater(const c10::OperatorHandle& op, torch::jit::Stack& stack);

} // namespace torchwire::accelerator
