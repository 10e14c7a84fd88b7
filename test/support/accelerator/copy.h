// Copies between devices and the host.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchwire::accelerator {

/// Copies into `to`, whose sizes `from` may have to be expanded to, on the current stream of the device, and as CUDA
/// does:
///  - between devices, on the current stream of the source, which waits for that of the destination before and is
///    waited for by it afterwards;
///  - from and to pinned memory, the host waits unless `nonBlocking`; the memory is kept from reuse until the copy is
///    done;
///  - from pageable memory, the bytes are taken at once, and the host waits unless `nonBlocking`;
///  - to pageable memory, it always waits.
at::Tensor copyFrom(const at::Tensor& from, const at::Tensor& to, bool nonBlocking);
at::Tensor copyFromAndResize(const at::Tensor& from, const at::Tensor& to);

/// While one is alive, the thread copies for an operator that runs on the host: it waits only for inputs, which is
/// counted as such, and results go to the device later.
class FallbackCopies {
 public:
  FallbackCopies();
  ~FallbackCopies();
  FallbackCopies(const FallbackCopies&) = delete;
  FallbackCopies& operator=(const FallbackCopies&) = delete;

 private:
  const bool outer_;
};

} // namespace torchwire::accelerator
