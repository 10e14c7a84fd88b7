// Tensors of devices on their way to the host, by which they travel between any two devices; placement.h has the rest.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

namespace torchwire::cuda {

/// Copies of tensors on the host, under way. The copies begin behind what this thread's current streams have still to do,
/// and nobody waits for them before finish(). Movable; not thread-safe.
class HostCopies {
 public:
  /// Whether any of the tensors is not on the CPU.
  static bool areNeeded(const std::vector<at::Tensor>& tensors);

  /// CPU tensors stay as they are. Throws c10::Error, without memory for one.
  explicit HostCopies(std::vector<at::Tensor> tensors);

  /// Waits until the copies have been made. Throws c10::Error if a device has failed.
  void wait();
  /// The tensors; waits.
  std::vector<at::Tensor> finish();

 private:
  std::vector<at::Tensor> sources_; // until they have been read
  std::vector<at::Tensor> copies_; // undefined: wait() makes it
  std::vector<c10::Stream> streams_; // one for each device, that copies are made on
  std::vector<c10::Event> copied_;
};

} // namespace torchwire::cuda
