#include "cuda/transfer/sending_lane.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/ScopeExit.h>

#include <stdexcept>
#include <utility>

#include "cuda/mutation.h"
#include "cuda/streams.h"

namespace torchwire::cuda {

std::optional<TensorTicket> SendingLane::keep(const at::Tensor& tensor) {
  const at::NoGradGuard noGrad;
  if (hasFailed() || !reserve(tensor.nbytes())) {
    return std::nullopt;
  }
  auto unused = c10::make_scope_exit([&] {
    MutexLock lock(keptMutex_);
    bytes_ -= tensor.nbytes();
  });
  TensorTicket ticket;
  ticket.path = DevicePath::nccl;
  ticket.lane = number_;
  const at::Tensor inOrder = ticket.describe(tensor);
  at::Tensor copy = at::empty(ticket.sizes, at::device(tensor.device()).dtype(tensor.dtype()));
  copy.copy_(inOrder, /* non_blocking */ true);
  c10::Event filled(tensor.device().type());
  filled.record(currentStreams({tensor.device()}).front());
  MutexLock lock(keptMutex_);
  if (hasFailed()) { // and has dropped all it had
    bytes_ -= tensor.nbytes();
    unused.release();
    return std::nullopt;
  }
  ticket.number = ++lastKept_;
  kept_.emplace(ticket.number, Kept{std::move(copy), std::move(filled)});
  unused.release();
  return ticket;
}

bool SendingLane::reserve(size_t bytes) {
  MutexLock lock(keptMutex_);
  if (bytes_ != 0 && bytes_ + bytes > kMostBytes) {
    return false;
  }
  bytes_ += bytes;
  return true;
}

std::optional<SendingLane::Kept> SendingLane::take(uint64_t kept) {
  MutexLock lock(keptMutex_);
  const auto found = kept_.find(kept);
  if (found == kept_.end()) {
    return std::nullopt;
  }
  Kept taken = std::move(found->second);
  kept_.erase(found);
  bytes_ -= taken.tensor.nbytes();
  return taken;
}

void SendingLane::drop(uint64_t kept) {
  take(kept); // unlocked, when it goes
}

void SendingLane::dropAll() {
  std::map<uint64_t, Kept> dropped; // unlocked
  MutexLock lock(keptMutex_);
  for (const auto& [number, kept] : kept_) {
    bytes_ -= kept.tensor.nbytes();
  }
  dropped.swap(kept_);
}

size_t SendingLane::kept() const {
  MutexLock lock(keptMutex_);
  return kept_.size();
}

void SendingLane::fetch(uint64_t sequence, uint64_t kept) {
  MutexLock lock(mutex_);
  order_.add(sequence, kept);
  while (isConnected_ && sendNext()) {
  }
}

void SendingLane::sendFirst(const at::Tensor& tensor) {
  c10::Event filled(tensor.device().type());
  filled.record(currentStreams({tensor.device()}).front());
  awaitPeer();
  MutexLock lock(mutex_);
  send({tensor, std::move(filled)});
  isConnected_ = true;
  while (sendNext()) {
  }
}

/// Returns false where there is nothing to be sent.
bool SendingLane::sendNext() {
  const auto number = order_.next();
  if (!number) {
    return false;
  }
  const auto kept = take(*number);
  if (!kept) {
    const std::string why = "its tensor " + std::to_string(*number) + " is not kept";
    fail(why);
    throw std::runtime_error(why);
  }
  send(*kept);
  return true;
}

void SendingLane::send(const Kept& kept) {
  const c10::StreamGuard guard(stream_);
  TORCHWIRE_SYNCHRONIZE(laneKeptLent, keepForCurrentStream(kept.tensor));
  TORCHWIRE_SYNCHRONIZE(laneBehindFilling, kept.filled.block(stream_));
  issue([&](Communicator& communicator) {
    communicator.send(kept.tensor.const_data_ptr(), kept.tensor.nbytes());
  });
}

} // namespace torchwire::cuda
