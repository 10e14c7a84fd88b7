// What workers say first on a link, hello or welcome, the answer of one that does not want it, and what is said last.

#include <cstdint>
#include <string>
#include <vector>

#include "backend/wire/handshake.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

constexpr size_t kMaxString = 64;

IncomingFrame frameOf(std::vector<char> head) {
  IncomingFrame frame;
  frame.head = std::move(head);
  return frame;
}

WorkerRecord makeRecord(Script& script) {
  WorkerRecord record;
  record.name = script.ConsumeRandomLengthString(kMaxString);
  record.id = script.ConsumeIntegral<WorkerId>();
  record.incarnation = script.ConsumeIntegral<uint64_t>();
  record.address = script.ConsumeRandomLengthString(kMaxString);
  record.torchVersion = script.ConsumeRandomLengthString(kMaxString);
  record.protocolVersion =
      script.ConsumeBool() ? kProtocolVersion : script.ConsumeIntegral<uint32_t>();
  record.linkOptions = script.ConsumeIntegral<uint32_t>();
  return record;
}

Hello makeHello(Script& script) {
  Hello hello;
  hello.self = makeRecord(script);
  hello.groupId = script.ConsumeIntegral<uint64_t>();
  hello.toId = script.ConsumeIntegral<WorkerId>();
  hello.toIncarnation = script.ConsumeIntegral<uint64_t>();
  hello.linkId = script.ConsumeIntegral<uint64_t>();
  hello.lastLinkId = script.ConsumeIntegral<uint64_t>();
  hello.offer = script.ConsumeBytes<char>(script.ConsumeIntegralInRange<size_t>(0, kMaxString));
  return hello;
}

/// A frame as a worker would send it, changed a little, or any bytes.
IncomingFrame makeFrame(Script& script) {
  std::vector<char> head;
  switch (script.ConsumeIntegralInRange(0, 3)) {
    case 0:
      return frameOf(script.ConsumeRemainingBytes<char>());
    case 1:
      head = makeHello(script).encode(FrameKind::hello).head;
      break;
    case 2:
      head =
          Goodbye{script.ConsumeRandomLengthString(kMaxString), script.ConsumeBool()}.encode().head;
      break;
    default:
      head =
          Refusal{ErrorCode::refused, script.ConsumeRandomLengthString(kMaxString)}.encode().head;
  }
  for (int changes = script.ConsumeIntegralInRange(0, 3); changes > 0; --changes) {
    const size_t at = script.ConsumeIntegralInRange<size_t>(0, head.size() - 1);
    head[at] = script.ConsumeIntegral<char>();
  }
  if (script.ConsumeBool()) {
    head.resize(script.ConsumeIntegralInRange<size_t>(0, head.size()));
  }
  return frameOf(std::move(head));
}

void decodeHello(const IncomingFrame& frame) {
  Hello hello;
  try {
    hello = Hello::decode(frame);
  } catch (const FormatError&) { // not a hello
    return;
  }
  WorkerRecord reader;
  reader.protocolVersion = kProtocolVersion;
  if (hello.self.protocolVersion != kProtocolVersion) {
    require(objectionToHello(hello, reader, 0).has_value(), "another protocol's hello is refused");
    return; // what else it says may not have been read
  }
  const std::vector<char> encoded = hello.encode(kindOf(frame)).head;
  const std::vector<char> again = Hello::decode(frameOf(encoded)).encode(kindOf(frame)).head;
  require(encoded == again, "a hello that was encoded is the same");
  require(encoded.size() <= frame.head.size(), "a hello is made of what came");
  reader = hello.self;
  reader.id = hello.toId;
  reader.incarnation = hello.toIncarnation;
  const bool fromItself = hello.self.id == hello.toId;
  require(
      objectionToHello(hello, reader, hello.groupId).has_value() == fromItself,
      "whom the hello means may accept it, unless it comes with that worker's own rank");
}

void decodeRefusal(const IncomingFrame& frame) {
  try {
    const Refusal refusal = Refusal::decode(frame);
    const Refusal again = Refusal::decode(frameOf(refusal.encode().head));
    require(again.code == refusal.code, "a refusal's code stays the same");
    require(again.reason == refusal.reason, "a refusal's reason stays the same");
  } catch (const FormatError&) { // not a refusal
  }
}

void decodeGoodbye(const IncomingFrame& frame) {
  try {
    const Goodbye goodbye = Goodbye::decode(frame);
    require(goodbye.reason.size() <= Goodbye::kMaxReason, "a goodbye's reason is short");
    const Goodbye again = Goodbye::decode(frameOf(goodbye.encode().head));
    require(again.reason == goodbye.reason, "a goodbye's reason stays the same");
    require(
        again.processEnds == (goodbye.processEnds && !goodbye.reason.empty()),
        "a goodbye with a reason says the same of the process");
  } catch (const FormatError&) { // not a goodbye
  }
}

/// Unchanged, it is what was meant.
void exchange(Script script) {
  const Hello hello = makeHello(script);
  const IncomingFrame frame = frameOf(hello.encode(FrameKind::welcome).head);
  require(kindOf(frame) == FrameKind::welcome, "a frame's kind is the one that was encoded");
  const Hello decoded = Hello::decode(frame);
  require(
      decoded.self.protocolVersion == hello.self.protocolVersion, "any version's hello tells it");
  if (hello.self.protocolVersion == kProtocolVersion) {
    require(
        decoded.encode(FrameKind::welcome).head == frame.head,
        "a hello that was decoded is the same");
  }
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::Script script(data, size);
  const torchwire::IncomingFrame frame = torchwire::makeFrame(script);
  torchwire::decodeHello(frame);
  torchwire::decodeRefusal(frame);
  torchwire::decodeGoodbye(frame);
  torchwire::exchange(torchwire::Script(data, size));
  return 0;
}
