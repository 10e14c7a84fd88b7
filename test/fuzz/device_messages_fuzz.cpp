// What workers tell one another about their devices and about tensors that do not lie in the frame.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/device_record.h"
#include "cuda/transfer/tensor_ticket.h"
#include "cuda/transfer/transfer_messages.h"
#include "test/fuzz/fuzz.h"

namespace torchwire::cuda {
namespace {

template <typename Message>
void readAndWriteMessage(const std::vector<char>& bytes) {
  readAndWrite(bytes, Message::decode, [](const Message& message) { return message.encode(); });
}

at::Tensor tensorOf(const std::vector<char>& bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.mutable_data_ptr()));
  return tensor;
}

void readAndWriteTicket(const std::vector<char>& bytes) {
  readAndWrite(
      bytes, [](const std::vector<char>& ticket) { return TensorTicket::decode(tensorOf(ticket)); },
      [](const TensorTicket& ticket) {
        const at::Tensor encoded = ticket.encode();
        const auto* data = static_cast<const char*>(encoded.const_data_ptr());
        return std::vector<char>(data, data + encoded.numel());
      });
}

void run(Script script) {
  const auto kind = script.ConsumeIntegralInRange(0, 5);
  const std::vector<char> bytes = script.ConsumeRemainingBytes<char>();
  switch (kind) {
    case 0:
      return readAndWriteMessage<DeviceRecord>(bytes);
    case 1:
      return readAndWriteMessage<BlocksDone>(bytes);
    case 2:
      return readAndWriteMessage<TrialRequest>(bytes);
    case 3:
      return readAndWriteMessage<LaneMessage>(bytes);
    case 4:
      return readAndWriteMessage<LaneTrial>(bytes);
    default:
      return readAndWriteTicket(bytes);
  }
}

} // namespace
} // namespace torchwire::cuda

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::cuda::run(torchwire::Script(data, size));
  return 0;
}
