#include "backend/faults/mid_tensor.h"

#include <algorithm>

namespace torchwire::faults {

std::shared_ptr<void> MidTensor::arm(const void* data, Injection inject) {
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    id = next_++;
    armed_.emplace(data, Armed{id, std::move(inject)});
  }
  // No pointer to anything: what counts is when it goes.
  return std::shared_ptr<void>(nullptr, [weak = weak_from_this(), id](void*) {
    if (const auto self = weak.lock()) {
      self->disarm(id);
    }
  });
}

MidTensor::Injection MidTensor::take(const void* data) {
  MutexLock lock(mutex_);
  const auto it = armed_.find(data);
  if (it == armed_.end()) {
    return nullptr;
  }
  Injection inject = std::move(it->second.inject);
  armed_.erase(it);
  return inject;
}

void MidTensor::disarm(uint64_t id) {
  Injection dropped; // destroyed unlocked: captures may be anything
  MutexLock lock(mutex_);
  const auto it = std::find_if(
      armed_.begin(), armed_.end(), [id](const auto& entry) { return entry.second.id == id; });
  if (it != armed_.end()) {
    dropped = std::move(it->second.inject);
    armed_.erase(it);
  }
}

} // namespace torchwire::faults
