// All operators that have no kernel of their own here: they run their CPU kernels.
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include "test/support/accelerator/copy.h"
#include "test/support/accelerator/deferred_call.h"

namespace torchwire::accelerator {
namespace {

/// Where the call cannot be put on the stream, the host waits for the inputs, on the current stream only, runs the CPU
/// kernel itself, and puts the writing of the results on the stream.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!callLater(op, *stack)) {
    const FallbackCopies copies;
    at::native::cpu_fallback(op, stack);
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

} // namespace
} // namespace torchwire::accelerator
