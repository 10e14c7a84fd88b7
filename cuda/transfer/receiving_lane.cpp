#include "cuda/transfer/receiving_lane.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <chrono>
#include <utility>

#include "cuda/streams.h"

namespace torchwire::cuda {
namespace {

// NCCL takes a while to notice that a peer is gone; the link does so first as a rule.
constexpr std::chrono::milliseconds kHealthInterval{20};

} // namespace

ReceivingLane::Receipt ReceivingLane::receive(const TensorTicket& ticket, c10::Device to) {
  const at::NoGradGuard noGrad;
  at::Tensor tensor = at::empty(ticket.sizes, at::device(to).dtype(ticket.dtype));
  return begin(ticket.restore(std::move(tensor)), /* isAskedFor */ true);
}

ReceivingLane::Receipt ReceivingLane::receiveFirst(size_t bytes, c10::Device to) {
  awaitPeer();
  return begin(
      at::empty({static_cast<int64_t>(bytes)}, at::device(to).dtype(at::kByte)),
      /* isAskedFor */ false);
}

ReceivingLane::Receipt ReceivingLane::begin(at::Tensor tensor, bool isAskedFor) {
  const c10::Device device = tensor.device();
  Receipt receipt{std::move(tensor), c10::Event(device.type())};
  c10::Event allocated(device.type()); // what had the memory before may still be using it
  allocated.record(currentStreams({device}).front());
  try {
    MutexLock lock(mutex_);
    allocated.block(stream_);
    issue([&](Communicator& communicator) {
      communicator.receive(receipt.tensor.mutable_data_ptr(), receipt.tensor.nbytes());
    });
    receipt.arrived.record(stream_);
    receipt.sequence = isAskedFor ? ++last_ : 0;
  } catch (...) { // the device may have begun all the same
    fail("a receive could not be begun");
    abort();
    stream_.synchronize();
    throw;
  }
  return receipt;
}

void ReceivingLane::await(const Receipt& receipt) {
  auto healthy = std::chrono::steady_clock::now();
  for (Patience patience; !hasFailed() && !receipt.arrived.query(); patience.wait()) {
    if (std::chrono::steady_clock::now() - healthy >= kHealthInterval) {
      checkHealth();
      healthy = std::chrono::steady_clock::now();
    }
  }
  if (hasFailed()) {
    abort(); // else the device might still write where the allocator's next owner does
    receipt.arrived.synchronize();
  }
  expectWorking();
}

} // namespace torchwire::cuda
