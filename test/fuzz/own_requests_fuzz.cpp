// What workers ask of one another about backward passes, calls, deaths and the stores that they serve, the answers, why
// calls have failed, and what is counted when a group shuts down.

#include <cstdint>
#include <vector>

#include "autograd/pass/pass_messages.h"
#include "backend/membership/store_request.h"
#include "backend/membership/totals.h"
#include "backend/wire/deaths.h"
#include "backend/wire/failure.h"
#include "backend/wire/whereabouts_messages.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

template <typename Message>
void readAndWritePassMessage(
    const std::vector<char>& bytes, Message (*decode)(const std::vector<char>&)) {
  readAndWrite(bytes, decode, [](const Message& message) { return encode(message); });
}

template <typename Message>
void readAndWriteMember(const std::vector<char>& bytes) {
  readAndWrite(bytes, Message::decode, [](const Message& message) { return message.encode(); });
}

void readAndWriteDeath(const std::vector<char>& bytes) {
  const auto decode = [](const std::vector<char>& body) {
    ByteReader in(body);
    return Death::read(in);
  };
  readAndWrite(bytes, decode, [](const Death& death) {
    std::vector<char> body;
    ByteWriter out(body);
    death.write(out);
    return body;
  });
}

void readAndWriteAnswer(const std::vector<char>& bytes, size_t calls) {
  const auto decode = [calls](const std::vector<char>& body) {
    return WhereaboutsAnswer::decode(body, calls);
  };
  readAndWrite(bytes, decode, [](const WhereaboutsAnswer& answer) { return answer.encode(); });
}

/// Numbers that others have written are summed up, whatever they are.
void sumUp(const std::vector<char>& bytes) {
  try {
    Totals totals = Totals::decode(bytes);
    const Totals once = totals;
    totals.add(once);
    require(totals.isOfSameWorkersAs(once), "a sum of numbers is of the same workers");
  } catch (const FormatError&) { // not numbers
  }
}

void run(Script script) {
  const auto kind = script.ConsumeIntegralInRange(0, 13);
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
      return readAndWriteMember<StoreRequest>(bytes);
    case 8:
      return readAndWriteMember<StoreAnswer>(bytes);
    case 9:
      return readAndWriteMember<WhereaboutsQuestion>(bytes);
    case 10:
      return readAndWriteAnswer(bytes, bytes.size() % 4);
    case 11:
      return readAndWriteDeath(bytes);
    case 12:
      return readAndWrite(bytes, decodeFailure, encodeFailure);
    default:
      readAndWriteMember<Totals>(bytes);
      return sumUp(bytes);
  }
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::run(torchwire::Script(data, size));
  return 0;
}
