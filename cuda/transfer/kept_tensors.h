// Tensors that a worker sends to itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <unordered_map>

#include "backend/base/annotations.h"

namespace torchwire::cuda {

/// Device tensors that do not leave the process, while the message that they belong to is under way. Thread-safe; holds no
/// lock while tensors are made or destroyed.
class KeptTensors {
 public:
  /// Keeps a tensor that this thread's current stream of its device fills.
  uint64_t keep(at::Tensor tensor) EXCLUDES(mutex_);

  /// The tensor, which from then on is not kept, for use on this thread's current stream. Throws FormatError for a number
  /// that stands for none.
  at::Tensor take(uint64_t number) EXCLUDES(mutex_);

  size_t size() const EXCLUDES(mutex_);

 private:
  struct Kept {
    at::Tensor tensor;
    c10::Event filled;
  };

  mutable Mutex mutex_{LockRank::keptTensors};
  uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, Kept> kept_ GUARDED_BY(mutex_);
};

} // namespace torchwire::cuda
