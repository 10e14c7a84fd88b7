// What workers tell one another about RRefs in messages that PyTorch does not have.

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"
#include "rref/own_requests.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

template <typename Read>
void readAndWriteMessage(const std::vector<char>& bytes, Read read) {
  readAndWrite(
      bytes, [&](const std::vector<char>& body) { return read(*messageOf(body, {})); },
      [](const auto& value) {
        MessagePtr message;
        if constexpr (requires { toMessage(value); }) {
          message = toMessage(value);
        } else {
          message = holdersReply(value);
        }
        return std::as_const(*message).payload();
      });
}

void run(Script script) {
  const auto kind = script.ConsumeIntegralInRange(0, 2);
  const std::vector<char> bytes = script.ConsumeRemainingBytes<char>();
  if (kind == 0) {
    readAndWriteMessage(bytes, creationSiteIn);
  } else if (kind == 1) {
    readAndWriteMessage(bytes, lostCreationIn);
  } else {
    readAndWriteMessage(bytes, forksIn);
  }
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::run(torchwire::Script(data, size));
  return 0;
}
