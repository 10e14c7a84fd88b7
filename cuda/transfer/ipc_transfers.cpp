#include "cuda/transfer/ipc_transfers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "cuda/mutation.h"
#include "cuda/streams.h"

namespace torchwire::cuda {
namespace {

c10::Stream currentStreamOf(c10::Device device) {
  return currentStreams({device}).front();
}

/// Memory of a device as a tensor that does not own it.
at::Tensor viewOf(void* data, const TensorTicket& ticket, c10::Device device) {
  return at::for_blob(data, ticket.sizes)
      .options(at::device(device).dtype(ticket.dtype))
      .target_device(device)
      .make_tensor();
}

/// The tensor's dimensions as they lie in memory, the one with the largest stride first. Empty: as they are.
std::vector<int64_t> orderInMemory(const at::Tensor& tensor) {
  if (tensor.is_contiguous() || !tensor.is_non_overlapping_and_dense()) {
    return {};
  }
  std::vector<int64_t> order(tensor.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return tensor.stride(a) > tensor.stride(b);
  });
  return order;
}

std::vector<int64_t> inverseOf(const std::vector<int64_t>& order) {
  std::vector<int64_t> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    inverse[order[i]] = static_cast<int64_t>(i);
  }
  return inverse;
}

} // namespace

std::optional<TensorTicket> IpcTransfers::lend(WorkerId to, const at::Tensor& tensor) {
  const at::NoGradGuard noGrad;
  const auto loan = lent_.lend(to, tensor.device().index(), tensor.nbytes());
  if (!loan) {
    return std::nullopt;
  }
  auto unused = c10::make_scope_exit([&] { lent_.giveBack(to, loan->id); });
  TensorTicket ticket;
  ticket.path = DevicePath::ipc;
  ticket.dtype = tensor.scalar_type();
  ticket.requiresGrad = tensor.requires_grad();
  const auto order = orderInMemory(tensor);
  const at::Tensor inOrder = order.empty() ? tensor : tensor.permute(order);
  ticket.sizes = inOrder.sizes().vec();
  ticket.order = inverseOf(order);
  ticket.from = tensor.device();
  ticket.block = {loan->id, loan->kept, loan->block.memoryHandle, loan->block.eventHandle};
  const c10::Stream stream = currentStreamOf(tensor.device());
  memory_.wait(loan->block.event, stream); // what was to fill it for a message that was not sent
  viewOf(loan->block.data, ticket, tensor.device()).copy_(inOrder, /* non_blocking */ true);
  TORCHWIRE_SYNCHRONIZE(blockFilled, memory_.record(loan->block.event, stream));
  unused.release();
  return ticket;
}

IpcTransfers::Fetched IpcTransfers::fetch(
    WorkerId from, const TensorTicket& ticket, c10::Device to) {
  const at::NoGradGuard noGrad;
  auto view = borrowed_.open(from, ticket.block, to.index());
  const c10::Stream stream = currentStreamOf(to);
  TORCHWIRE_SYNCHRONIZE(blockBehindFilling, memory_.wait(view->event, stream));
  at::Tensor tensor = at::empty(ticket.sizes, at::device(to).dtype(ticket.dtype));
  tensor.copy_(viewOf(view->data, ticket, to), /* non_blocking */ true);
  if (!ticket.order.empty()) {
    tensor = tensor.permute(ticket.order);
  }
  tensor.set_requires_grad(ticket.requiresGrad);
  c10::Event copied(to.type());
  copied.record(stream);
  return {std::move(tensor), std::move(view), std::move(copied)};
}

} // namespace torchwire::cuda
