#include "cuda/transfer/kept_tensors.h"

#include <string>
#include <utility>

#include "backend/base/bytes.h"
#include "cuda/streams.h"

namespace torchwire::cuda {

uint64_t KeptTensors::keep(at::Tensor tensor) {
  c10::Event filled(tensor.device().type());
  filled.record(currentStreams({tensor.device()}).front());
  MutexLock lock(mutex_);
  kept_.emplace(++last_, Kept{std::move(tensor), std::move(filled)});
  return last_;
}

at::Tensor KeptTensors::take(uint64_t number) {
  std::unordered_map<uint64_t, Kept>::node_type kept;
  {
    MutexLock lock(mutex_);
    kept = kept_.extract(number);
  }
  if (kept.empty()) {
    throw FormatError("no tensor is kept by the number " + std::to_string(number));
  }
  at::Tensor tensor = std::move(kept.mapped().tensor);
  useOnCurrentStream(tensor, kept.mapped().filled);
  return tensor;
}

size_t KeptTensors::size() const {
  MutexLock lock(mutex_);
  return kept_.size();
}

} // namespace torchwire::cuda
