#include "backend/wire/handshake.h"

#include <catch2/catch.hpp>
#include <random>

using namespace torchwire;

namespace {

WorkerRecord record(WorkerId id) {
  WorkerRecord worker;
  worker.name = "trainer" + std::to_string(id);
  worker.id = id;
  worker.incarnation = 0xabcdef0123456789 + static_cast<uint64_t>(id);
  worker.address = "tcp://10.0.0.1:4711";
  worker.torchVersion = "2.11.0";
  worker.protocolVersion = kProtocolVersion;
  worker.linkOptions = 0;
  return worker;
}

Hello helloTo(const WorkerRecord& to) {
  Hello hello;
  hello.self = record(0);
  hello.groupId = 99;
  hello.toId = to.id;
  hello.toIncarnation = to.incarnation;
  hello.linkId = 0x5555555555555555;
  hello.lastLinkId = 7;
  hello.session = {12, true, {5, {{7, 8}}}, {11, {3, {}}}};
  hello.offer = {'o', '\0', 'f'};
  return hello;
}

IncomingFrame arrived(OutgoingFrame frame) {
  return loopBack(std::move(frame));
}

std::string objection(const Hello& hello) {
  const auto refusal = objectionToHello(hello, record(1), 99);
  return refusal ? refusal->reason : "";
}

} // namespace

TEST_CASE("a goodbye says why its sender leaves, if it does", "[handshake]") {
  const IncomingFrame frame = arrived(Goodbye{"it ended by ValueError: on purpose", true}.encode());
  CHECK(kindOf(frame) == FrameKind::goodbye);
  const Goodbye goodbye = Goodbye::decode(frame);
  CHECK(goodbye.reason == "it ended by ValueError: on purpose");
  CHECK(goodbye.processEnds);

  CHECK(
      Goodbye().encode().head.size() ==
      FrameHeader::kShortSize); // as workers send it that know of no reason
  const Goodbye silent = Goodbye::decode(arrived(bareFrame(FrameKind::goodbye)));
  CHECK(silent.reason.empty());
  CHECK_FALSE(silent.processEnds);
}

TEST_CASE("a goodbye's reason is a line of bounded length, whoever sends it", "[handshake]") {
  OutgoingFrame frame = bareFrame(FrameKind::goodbye);
  ByteWriter out(frame.head);
  out.flag(false);
  out.string("\x1b[2J\n" + std::string(100'000, 'x'));
  const std::string reason = Goodbye::decode(arrived(std::move(frame))).reason;
  CHECK(reason.size() == Goodbye::kMaxReason);
  CHECK_THAT(reason, Catch::StartsWith("\\x1b[2J\\nxxx") && Catch::EndsWith("x..."));
  CHECK(Goodbye{std::string(100'000, 'x')}.encode().head.size() < 600);
}

TEST_CASE("a goodbye that ends too soon is refused", "[handshake]") {
  OutgoingFrame frame = Goodbye{"it ended", true}.encode();
  frame.head.resize(frame.head.size() - GENERATE(1, 8, 12));
  CHECK_THROWS_AS(Goodbye::decode(arrived(std::move(frame))), FormatError);
}

TEST_CASE("a request or an acknowledgement is no goodbye, whatever its kind says", "[handshake]") {
  std::vector<char> head;
  ByteWriter out(head);
  FrameHeader{.kind = FrameKind::request, .bodyLength = 4}.write(out);
  if (GENERATE(false, true)) {
    out.raw("body", 4);
  }
  head[0] = static_cast<char>(FrameKind::goodbye);
  IncomingFrame frame;
  frame.head = head;
  REQUIRE(kindOf(frame) == FrameKind::goodbye);
  CHECK_THROWS_AS(Goodbye::decode(frame), FormatError);
}

TEST_CASE("nobody else may have this worker's rank", "[handshake]") {
  Hello hello = helloTo(record(1));
  hello.self = record(1);
  CHECK_THAT(objection(hello), Catch::StartsWith("it has the rank of worker"));
}

TEST_CASE("a hello survives the journey", "[handshake]") {
  const FrameKind kind = GENERATE(FrameKind::hello, FrameKind::welcome);
  const Hello sent = helloTo(record(1));
  const IncomingFrame frame = arrived(sent.encode(kind));
  CHECK(kindOf(frame) == kind);
  const Hello hello = Hello::decode(frame);
  CHECK(hello.self.name == "trainer0");
  CHECK(hello.self.id == 0);
  CHECK(hello.self.incarnation == sent.self.incarnation);
  CHECK(hello.self.address == sent.self.address);
  CHECK(hello.self.torchVersion == "2.11.0");
  CHECK(hello.self.protocolVersion == kProtocolVersion);
  CHECK(hello.groupId == 99);
  CHECK(hello.toId == 1);
  CHECK(hello.toIncarnation == sent.toIncarnation);
  CHECK(hello.linkId == sent.linkId);
  CHECK(hello.lastLinkId == 7);
  CHECK(hello.session.id == 12);
  CHECK(hello.session.established);
  CHECK(hello.session.received.through == 5);
  CHECK(hello.session.received.beyond == std::vector<Receipts::Range>{{7, 8}});
  CHECK(hello.session.former.id == 11);
  CHECK(hello.session.former.received.through == 3);
  CHECK(hello.offer == sent.offer);
}

TEST_CASE("a hello without an offer survives the journey", "[handshake]") {
  Hello sent = helloTo(record(1));
  sent.offer.clear();
  CHECK(Hello::decode(arrived(sent.encode(FrameKind::hello))).offer.empty());
}

TEST_CASE("a hello that fits is welcome", "[handshake]") {
  CHECK_FALSE(objectionToHello(helloTo(record(1)), record(1), 99));
}

TEST_CASE("another torchwire protocol is refused with both versions", "[handshake]") {
  Hello hello = helloTo(record(1));
  hello.self.protocolVersion = kProtocolVersion + 1;
  CHECK(
      objection(hello) ==
      "it speaks torchwire protocol " + std::to_string(kProtocolVersion) + ", not " +
          std::to_string(kProtocolVersion + 1) + ": install the same torchwire on both");
}

TEST_CASE("another torch is refused with both versions", "[handshake]") {
  Hello hello = helloTo(record(1));
  hello.self.torchVersion = "2.12.1";
  CHECK(objection(hello) == "it runs torch 2.11.0, not 2.12.1: install the same torch on both");
}

TEST_CASE("a worker with other link options is refused with the difference", "[handshake]") {
  Hello hello = helloTo(record(1));
  SECTION("faults") {
    hello.self.linkOptions = link_options::kFaultInjection | link_options::kChecksums;
    CHECK(
        objection(hello) ==
        "the dialing worker injects faults (FAULTY_TORCHWIRE) but it does not: choose the same "
        "backend on "
        "all workers");
  }
  SECTION("checksums") {
    hello.self.linkOptions = link_options::kChecksums;
    CHECK(
        objection(hello) ==
        "the dialing worker adds checksums to its frames but it does not: give all workers the "
        "same "
        "`checksums`");
  }
}

TEST_CASE("another group is refused", "[handshake]") {
  Hello hello = helloTo(record(1));
  hello.groupId = 98;
  CHECK(objection(hello) == "it belongs to another RPC group: check the init_method of both");
}

TEST_CASE("a hello for another worker at this address is refused", "[handshake]") {
  Hello hello = helloTo(record(1));
  ErrorCode code = ErrorCode::refused;
  SECTION("of another rank") {
    hello.toId = 5;
  }
  SECTION("of an earlier incarnation, which is dead") {
    hello.toIncarnation -= 1;
    code = ErrorCode::workerDied;
  }
  const auto refusal = objectionToHello(hello, record(1), hello.groupId);
  REQUIRE(refusal);
  CHECK(Refusal::decode(arrived(refusal->encode())).code == code);
  CHECK(
      objection(hello) ==
      "its address now belongs to worker 'trainer1' (rank 1), started anew since: the worker that "
      "you mean is gone");
}

TEST_CASE("the version is the first difference that is named", "[handshake]") {
  Hello hello; // as decoded of another version: nothing else is known
  hello.self.protocolVersion = kProtocolVersion - 1;
  CHECK_THAT(objection(hello), Catch::Contains("protocol"));
}

TEST_CASE("the version of a hello is readable whatever follows it", "[handshake]") {
  Hello future = helloTo(record(1));
  future.self.protocolVersion = kProtocolVersion + 1;
  OutgoingFrame frame = future.encode(FrameKind::hello);
  frame.head.resize(FrameHeader::kShortSize + 2 * sizeof(uint32_t)); // magic and version
  SECTION("nothing follows") {}
  SECTION("something of another form follows") {
    frame.head.insert(frame.head.end(), 50, '\xff');
  }
  const Hello hello = Hello::decode(arrived(std::move(frame)));
  CHECK(hello.self.protocolVersion == kProtocolVersion + 1);
  CHECK(objectionToHello(hello, record(1), 99));
}

TEST_CASE("a frame that is no handshake is refused", "[handshake]") {
  OutgoingFrame frame = bareFrame(FrameKind::hello);
  SECTION("nothing follows the header") {}
  SECTION("something else follows the header") {
    frame.head.insert(frame.head.end(), 100, 'x');
  }
  CHECK_THROWS_AS(Hello::decode(arrived(std::move(frame))), FormatError);
}

TEST_CASE("a hello cut short is refused wherever the cut is", "[handshake]") {
  const IncomingFrame whole = arrived(helloTo(record(1)).encode(FrameKind::hello));
  for (size_t length = 0; length < whole.head.size(); ++length) {
    IncomingFrame cut;
    cut.head.assign(whole.head.begin(), whole.head.begin() + static_cast<ptrdiff_t>(length));
    CHECK_THROWS_AS(Hello::decode(cut), FormatError);
  }
}

TEST_CASE("no bytes make the handshake do more than refuse", "[handshake]") {
  const unsigned seed = GENERATE(range(0u, 20u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const IncomingFrame whole = arrived(helloTo(record(1)).encode(FrameKind::hello));
  for (int i = 0; i < 200; ++i) {
    IncomingFrame frame = whole;
    const auto changes = 1 + random() % 4;
    for (size_t change = 0; change < changes; ++change) {
      frame.head[random() % frame.head.size()] = static_cast<char>(random());
    }
    try {
      const Hello hello = Hello::decode(frame);
      CHECK(hello.offer.size() <= frame.head.size());
    } catch (const FormatError&) {
      // As it should be; anything else fails the test.
    }
  }
}

TEST_CASE("a refusal survives the journey", "[handshake]") {
  const ErrorCode code = GENERATE(ErrorCode::refused, ErrorCode::duplicateLink);
  const IncomingFrame frame = arrived(Refusal{code, "it does not like you"}.encode());
  CHECK(kindOf(frame) == FrameKind::refuse);
  const Refusal refusal = Refusal::decode(frame);
  CHECK(refusal.code == code);
  CHECK(refusal.reason == "it does not like you");
}

TEST_CASE("a refusal of unknown code is final", "[handshake]") {
  OutgoingFrame frame = bareFrame(FrameKind::refuse);
  ByteWriter out(frame.head);
  out.number(uint32_t{12345});
  out.string("of a later version");
  CHECK(Refusal::decode(arrived(std::move(frame))).code == ErrorCode::refused);
}

TEST_CASE("a refusal cut short is refused itself", "[handshake]") {
  const IncomingFrame whole = arrived(Refusal{ErrorCode::refused, "no"}.encode());
  for (size_t length = 0; length < whole.head.size(); ++length) {
    IncomingFrame cut;
    cut.head.assign(whole.head.begin(), whole.head.begin() + static_cast<ptrdiff_t>(length));
    CHECK_THROWS_AS(Refusal::decode(cut), FormatError);
  }
}

TEST_CASE("an empty frame has no kind", "[handshake]") {
  CHECK_THROWS_AS(kindOf(IncomingFrame()), FormatError);
}
