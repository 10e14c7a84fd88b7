// Messages through a frame and back.

#include "backend/codec/codec.h"

#include <ATen/ops/arange.h>

#include <catch2/catch.hpp>

#include <random>
#include <string>
#include <utility>

#include "backend/base/thread_pool.h"
#include "backend/wire/inline_limit.h"
#include "test/unit/codec/sample_tensors.h"
#include "test/unit/support/seeds.h"

namespace rpc = torch::distributed::rpc;
using namespace torchwire;

namespace {

Disposer disposer() {
  return Disposer(std::make_shared<ThreadPool>(1, "codec_test"));
}

c10::intrusive_ptr<rpc::Message> message(
    std::vector<char> payload, std::vector<at::Tensor> tensors) {
  return c10::make_intrusive<rpc::Message>(
      std::move(payload), std::move(tensors), rpc::MessageType::PYTHON_CALL);
}

std::vector<char> payloadOf(size_t length) {
  std::vector<char> bytes(length);
  for (size_t i = 0; i < length; ++i) {
    bytes[i] = static_cast<char>(i * 7);
  }
  return bytes;
}

void checkReturns(
    const std::vector<char>& payload, const std::vector<at::Tensor>& tensors, uint64_t id) {
  OutgoingFrame frame = encodeMessage(FrameKind::request, message(payload, tensors), disposer());
  setCallId(frame, id);
  ReceivedFrame arrived = readHeader(loopBack(std::move(frame)));
  CHECK(arrived.header.kind == FrameKind::request);
  CHECK(arrived.header.callId == id);
  const auto received = decodeMessage(std::move(arrived)).message;
  CHECK(received->type() == rpc::MessageType::PYTHON_CALL);
  CHECK(received->id() == static_cast<int64_t>(id));
  CHECK((received->payload() == payload));
  REQUIRE(received->tensors().size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(difference(tensors[i], received->tensors()[i]) == "");
  }
}

} // namespace

TEST_CASE("a message returns with its type, payload, tensors and id", "[codec]") {
  checkReturns({}, {}, 0);
  checkReturns(payloadOf(1), {}, 1);
  checkReturns(payloadOf(100), {at::arange(5), at::Tensor()}, uint64_t{1} << 62);
}

TEST_CASE("a response is a message of another kind", "[codec]") {
  const auto sent = c10::make_intrusive<rpc::Message>(
      payloadOf(3), std::vector<at::Tensor>(), rpc::MessageType::PYTHON_RET);
  ReceivedFrame arrived =
      readHeader(loopBack(encodeMessage(FrameKind::response, sent, disposer())));
  CHECK(arrived.header.kind == FrameKind::response);
  CHECK(decodeMessage(std::move(arrived)).message->type() == rpc::MessageType::PYTHON_RET);
}

TEST_CASE("a payload from the inline limit on travels outside the head", "[codec]") {
  for (const size_t length : {inlineLimit() - 1, inlineLimit(), inlineLimit() + 1}) {
    const auto sent = message(payloadOf(length), {});
    const OutgoingFrame frame = encodeMessage(FrameKind::request, sent, disposer());
    CHECK(frame.payloads.size() == (length < inlineLimit() ? 0 : 1));
    CHECK(frame.tensors.empty());
    CHECK((frame.owner != nullptr) == (length >= inlineLimit()));
    checkReturns(payloadOf(length), {at::arange(3)}, 9);
  }
}

TEST_CASE("a frame keeps the message whose payload it points into", "[codec]") {
  auto sent = message(payloadOf(inlineLimit()), {});
  OutgoingFrame frame = encodeMessage(FrameKind::request, sent, disposer());
  CHECK(sent.use_count() == 2);
  sent.reset();
  const auto received = decodeMessage(readHeader(loopBack(std::move(frame)))).message;
  CHECK((received->payload() == payloadOf(inlineLimit())));

  const auto small = message(payloadOf(10), {at::arange(3)});
  const OutgoingFrame copied = encodeMessage(FrameKind::request, small, disposer());
  CHECK(small.use_count() == 1);
}

TEST_CASE("generated messages return as they were", "[codec]") {
  for (const unsigned seed : seeds(50)) {
    INFO("TORCHWIRE_TEST_SEED=" << seed);
    std::mt19937 random(seed);
    const std::vector<size_t> lengths = {0, random() % 100, inlineLimit() + random() % 100};
    const std::vector<char> payload = payloadOf(lengths[random() % lengths.size()]);
    std::vector<at::Tensor> tensors;
    for (unsigned n = random() % 4; n > 0; --n) {
      tensors.push_back(randomTensor(random));
    }
    if (random() % 3 == 0) {
      tensors.push_back(randomBytes(at::kFloat, static_cast<int64_t>(inlineLimit()), random));
    }
    checkReturns(payload, tensors, random());
  }
}
