#include "cuda/transfer/memory_trial.h"

#include <stdexcept>

#include "cuda/streams.h"
#include "cuda/transfer/trial_bytes.h"

namespace torchwire::cuda {

std::optional<MemoryTrial> MemoryTrial::begin(IpcTransfers& ipc, const DeviceRoute& route) {
  const OwnStreams streams({route.from});
  const std::vector<char> bytes = randomBytes();
  const auto ticket = ipc.lend(route.peer, tensorOf(bytes).to(route.from));
  if (!ticket) {
    return std::nullopt;
  }
  return MemoryTrial{{route.to, bytesOf(ticket->encode()), bytes}, ticket->block.id};
}

void MemoryTrial::check(IpcTransfers& ipc, WorkerId from, const TrialRequest& request) {
  const OwnStreams streams({request.to});
  const TensorTicket ticket = TensorTicket::decode(tensorOf(request.ticket));
  if (ticket.path != DevicePath::ipc || ticket.dtype != at::kByte ||
      ticket.bytes() != request.expected.size()) {
    throw FormatError("a trial of a device's memory does not say what to expect");
  }
  const auto fetched = ipc.fetch(from, ticket, request.to);
  if (bytesOf(fetched.tensor.cpu()) != request.expected) {
    throw std::runtime_error("other bytes came than were sent");
  }
}

} // namespace torchwire::cuda
