// What workers ask of one another about backward passes and of the stores that they serve, and the answers.

#include <cstdint>
#include <vector>

#include "autograd/pass/pass_messages.h"
#include "backend/membership/store_request.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

template <typename Message>
void readAndWritePassMessage(
    const std::vector<char>& bytes, Message (*decode)(const std::vector<char>&)) {
  readAndWrite(bytes, decode, [](const Message& message) { return encode(message); });
}

template <typename Message>
void readAndWriteStoreMessage(const std::vector<char>& bytes) {
  readAndWrite(bytes, Message::decode, [](const Message& message) { return message.encode(); });
}

void run(Script script) {
  const auto kind = script.ConsumeIntegralInRange(0, 8);
  const std::vector<char> bytes = script.ConsumeRemainingBytes<char>();
  switch (kind) {
    case 0:
      return readAndWritePassMessage(bytes, decodePassId);
    case 1:
      return readAndWritePassMessage(bytes, decodeGradientsHead);
    case 2:
      return readAndWritePassMessage(bytes, decodeEndRequest);
    case 3:
      return readAndWritePassMessage(bytes, decodeReport);
    case 4:
      return readAndWritePassMessage(bytes, decodeDiscoverRequest);
    case 5:
      return readAndWritePassMessage(bytes, decodeDiscovered);
    case 6:
      return readAndWritePassMessage(bytes, decodePassEnded);
    case 7:
      return readAndWriteStoreMessage<StoreRequest>(bytes);
    default:
      return readAndWriteStoreMessage<StoreAnswer>(bytes);
  }
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::run(torchwire::Script(data, size));
  return 0;
}
