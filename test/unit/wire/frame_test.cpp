#include "backend/wire/frame.h"

#include <catch2/catch.hpp>
#include <cstdint>

#include "backend/wire/handshake.h"

using namespace torchwire;

namespace {

FrameHeader sampleHeader() {
  FrameHeader header;
  header.kind = FrameKind::response;
  header.flags = 0x81;
  header.messageType = 0x01020304;
  header.callId = 0x1122334455667788;
  header.bodyLength = 1u << 31;
  return header;
}

std::vector<char> encoded(const FrameHeader& header) {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  header.write(out);
  return bytes;
}

} // namespace

TEST_CASE("a frame header survives the journey", "[frame]") {
  const std::vector<char> bytes = encoded(sampleHeader());
  REQUIRE(bytes.size() == FrameHeader::kSize);
  ByteReader in(bytes);
  const FrameHeader header = FrameHeader::read(in);
  CHECK(header.kind == FrameKind::response);
  CHECK(header.flags == 0x81);
  CHECK(header.messageType == 0x01020304);
  CHECK(header.callId == 0x1122334455667788);
  CHECK(header.bodyLength == 1u << 31);
  CHECK(in.remaining() == 0);
}

TEST_CASE("a request says how long its caller waits, in units of 16 ms", "[frame]") {
  using std::chrono::milliseconds;
  const auto [left, read] = GENERATE(
      std::pair(milliseconds(1), milliseconds(16)), std::pair(milliseconds(16), milliseconds(16)),
      std::pair(milliseconds(1000), milliseconds(1008)),
      std::pair(milliseconds(65535 * 16), milliseconds(65535 * 16)),
      std::pair(milliseconds(65535 * 16 + 1), milliseconds(0))); // longer than can be said
  OutgoingFrame frame;
  ByteWriter out(frame.head);
  FrameHeader{.kind = FrameKind::request}.write(out);
  setTimeLeft(frame, left);
  CHECK(readHeader(loopBack(std::move(frame))).header.timeLeft == read);
}

TEST_CASE("a response says how long its callee had the request", "[frame]") {
  using std::chrono::microseconds;
  using std::chrono::nanoseconds;
  const auto [served, least] = GENERATE(
      std::pair(nanoseconds(999), microseconds(0)), std::pair(nanoseconds(-7), microseconds(0)),
      std::pair(nanoseconds(microseconds(2047)), microseconds(2047)),
      std::pair(nanoseconds(microseconds(2049)), microseconds(2048)),
      std::pair(nanoseconds(std::chrono::hours(5)), microseconds(17'982'000'000)),
      std::pair(nanoseconds(std::chrono::hours(24 * 300)), microseconds(int64_t{1} << 40)));
  OutgoingFrame frame;
  ByteWriter out(frame.head);
  FrameHeader{.kind = FrameKind::response}.write(out);
  setServed(frame, served);
  const FrameHeader header = readHeader(loopBack(std::move(frame))).header;
  CHECK(header.served >= least);
  CHECK(header.served <= std::max(served, nanoseconds(0)));
  CHECK(header.timeLeft == std::chrono::milliseconds(0));
}

TEST_CASE("a frame header has the layout of the protocol", "[frame]") {
  const std::vector<char> bytes = encoded(sampleHeader());
  CHECK(bytes[0] == 5);
  CHECK(static_cast<uint8_t>(bytes[1]) == 0x81);
  CHECK(bytes[4] == 4); // the message type, least significant byte first
  CHECK(static_cast<uint8_t>(bytes[8]) == 0x88); // the call id
  CHECK(static_cast<uint8_t>(bytes[19]) == 0x80); // the body's length
}

TEST_CASE("a frame whose header has been read is still whole", "[frame]") {
  IncomingFrame frame;
  ByteWriter out(frame.head);
  FrameHeader{.kind = FrameKind::response, .messageType = 7, .callId = 3}.write(out);
  out.string("the rest");
  const std::vector<char> head = frame.head;
  const ReceivedFrame received = readHeader(std::move(frame));
  CHECK(received.header.kind == FrameKind::response);
  CHECK(received.header.messageType == 7);
  CHECK(received.header.callId == 3);
  CHECK(received.frame.head == head);
  CHECK_THROWS_AS(readHeader(IncomingFrame()), FormatError);
}

TEST_CASE("a frame of unknown kind is refused", "[frame]") {
  const int kind = GENERATE(0, 8, 128, 255);
  std::vector<char> bytes = encoded(sampleHeader());
  bytes[0] = static_cast<char>(kind);
  ByteReader in(bytes);
  CHECK_THROWS_WITH(FrameHeader::read(in), "a frame of unknown kind " + std::to_string(kind));
}

TEST_CASE("a frame header cut short is refused", "[frame]") {
  const std::vector<char> bytes = encoded(sampleHeader());
  for (size_t length = 0; length < bytes.size(); ++length) {
    ByteReader in(bytes.data(), length);
    CHECK_THROWS_AS(FrameHeader::read(in), FormatError);
  }
}

TEST_CASE("a call's id is entered after the frame is made", "[frame]") {
  OutgoingFrame frame = bareFrame(FrameKind::request);
  setCallId(frame, 0xfedcba9876543210);
  ByteReader in(frame.head);
  const FrameHeader header = FrameHeader::read(in);
  CHECK(header.callId == 0xfedcba9876543210);
  CHECK(header.kind == FrameKind::request);
  CHECK(header.bodyLength == 0);
}

TEST_CASE("a frame counts the bytes of all its parts", "[frame]") {
  const std::string payload = "payload";
  const std::vector<float> tensor(10);
  OutgoingFrame frame = bareFrame(FrameKind::request);
  frame.payloads.push_back({payload.data(), payload.size()});
  frame.tensors.push_back({tensor.data(), sizeof(float) * tensor.size()});
  CHECK(frame.bytes() == FrameHeader::kSize + 7 + 40);
  CHECK(loopBack(std::move(frame)).bytes() == FrameHeader::kSize + 7 + 40);
}

TEST_CASE("a frame looped back owns copies of what it was made from", "[frame]") {
  std::string payload = "payload";
  std::vector<char> tensor = {1, 2, 3};
  OutgoingFrame frame = bareFrame(FrameKind::request);
  const std::vector<char> head = frame.head;
  frame.payloads.push_back({payload.data(), payload.size()});
  frame.tensors.push_back({tensor.data(), tensor.size()});
  const IncomingFrame in = loopBack(std::move(frame));
  payload.assign(7, '!');
  tensor.assign(3, 9);

  CHECK(in.head == head);
  REQUIRE(in.payloads.size() == 1);
  CHECK(std::string(in.payloads[0].begin(), in.payloads[0].end()) == "payload");
  REQUIRE(in.tensors.size() == 1);
  const auto* copied = static_cast<const char*>(in.tensors[0].data.get());
  CHECK(std::vector<char>(copied, copied + in.tensors[0].length) == std::vector<char>{1, 2, 3});
}

TEST_CASE("a frame looped back may have empty parts", "[frame]") {
  const char byte = 0;
  OutgoingFrame frame = bareFrame(FrameKind::request);
  frame.payloads.push_back({nullptr, 0});
  frame.tensors.push_back({&byte, 0});
  frame.tensors.push_back({nullptr, 0});
  const IncomingFrame in = loopBack(std::move(frame));
  REQUIRE(in.payloads.size() == 1);
  CHECK(in.payloads[0].empty());
  REQUIRE(in.tensors.size() == 2);
  CHECK(in.tensors[0].length == 0);
}

TEST_CASE("a blob is aligned for any tensor", "[frame]") {
  for (const size_t length : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{100000}}) {
    const Blob blob = allocateBlob(length);
    CHECK(blob.length == length);
    CHECK(reinterpret_cast<uintptr_t>(blob.data.get()) % 64 == 0);
    static_cast<char*>(blob.data.get())[length - 1] = 1; // it is ours to write
  }
}

TEST_CASE("an absurd blob is refused, not truncated", "[frame]") {
  CHECK_THROWS_AS(allocateBlob(SIZE_MAX), std::bad_alloc);
}
