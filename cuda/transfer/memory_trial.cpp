#include "cuda/transfer/memory_trial.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <stdexcept>

#include "backend/base/random.h"
#include "cuda/streams.h"

namespace torchwire::cuda {
namespace {

constexpr size_t kNumbers = 512; // of 8 bytes

std::vector<char> randomBytes() {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  for (size_t i = 0; i < kNumbers; ++i) {
    out.number(randomNumber());
  }
  return bytes;
}

at::Tensor tensorOf(const std::vector<char>& bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::vector<char> bytesOf(const at::Tensor& tensor) {
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  return {data, data + tensor.numel()};
}

} // namespace

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
