#include "cuda/transfer/ipc_transfers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/ScopeExit.h>

#include <utility>

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
  const at::Tensor inOrder = ticket.describe(tensor);
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
  c10::Event copied(to.type());
  copied.record(stream);
  return {ticket.restore(std::move(tensor)), std::move(view), std::move(copied)};
}

} // namespace torchwire::cuda
