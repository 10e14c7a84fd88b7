// Requests as no worker writes them: each is answered, once, whatever is in it.

#include "backend/serve/server.h"

#include <ATen/ops/arange.h>

#include <catch2/catch.hpp>

#include <set>
#include <string>
#include <utility>

#include "backend/serve/response.h"
#include "backend/wire/inline_limit.h"
#include "test/unit/serve/sample_requests.h"
#include "test/unit/support/serving_worker.h"

namespace rpc = torch::distributed::rpc;
using namespace torchwire;

namespace {

constexpr WorkerId kCaller = 1;

/// A worker that serves a type of our own, and keeps the number of each request that it is given.
class HostileServing {
 public:
  HostileServing() {
    worker_.dispatcher().handleOwn(kOwnRequest, [](WorkerId, rpc::Message& request) {
      return completed(messageOf(payloadOf(request), kOwnResponse));
    });
  }

  /// The frame's bytes come as the next call. Whether they come that far: links see to the header themselves.
  bool deliver(const IncomingFrame& bytes) {
    ReceivedFrame received;
    try {
      received = readHeader(bytes);
    } catch (const FormatError&) {
      return false;
    }
    const auto type = static_cast<int>(received.header.messageType);
    if (received.header.kind != FrameKind::request || type == rpc::MessageType::PYTHON_CALL ||
        type == rpc::MessageType::PYTHON_REMOTE_CALL) { // there is no Python here
      return false;
    }
    received.header.callId = ++calls_;
    REQUIRE(worker_.deliver(kCaller, std::move(received)));
    return true;
  }

  /// Waits for all answers. How many of them are errors.
  size_t errors() {
    REQUIRE(worker_.responses().waitForTotal(calls_));
    size_t errors = 0;
    for (uint64_t id = 1; id <= calls_; ++id) {
      CAPTURE(id);
      REQUIRE(worker_.responses().count(kCaller, id) == 1);
      const auto response = worker_.responses().waitFor(kCaller, id);
      errors += isError(*response) ? 1 : 0;
      CHECK((!isError(*response) || !response->payload().empty()));
    }
    CHECK(worker_.responses().total() == calls_);
    CHECK(worker_.server().metrics().active == 0);
    return errors;
  }

  size_t calls() const {
    return calls_;
  }

 private:
  ServingWorker worker_;
  uint64_t calls_ = 0;
};

IncomingFrame ownFrame() {
  return frameOf(1, messageOf("body", kOwnRequest, {at::arange(3, at::kFloat)})).frame;
}

IncomingFrame operatorFrame() {
  return frameOf(1, addition(1, 2)).frame;
}

/// Whether a byte is for libtorch's unpickler, which reserves whatever length it reads.
bool isPickled(const IncomingFrame& frame, size_t at) {
  const FrameHeader header = readHeader(frame).header;
  return static_cast<int>(header.messageType) == rpc::MessageType::SCRIPT_CALL &&
      at >= FrameHeader::kSize && at < FrameHeader::kSize + header.bodyLength;
}

/// What a byte is changed to: each bit, none, all.
std::set<char> changesOf(char byte) {
  std::set<char> changes = {0, static_cast<char>(0xff)};
  for (unsigned bit = 0; bit < 8; ++bit) {
    changes.insert(static_cast<char>(static_cast<unsigned>(byte) ^ 1U << bit));
  }
  changes.erase(byte);
  return changes;
}

} // namespace

TEST_CASE("a request with any of its bytes changed is answered once", "[server_hostile]") {
  const IncomingFrame original = GENERATE(ownFrame(), operatorFrame());
  HostileServing serving;
  REQUIRE(serving.deliver(original));
  REQUIRE(serving.errors() == 0);
  for (size_t at = 0; at < original.head.size(); ++at) {
    if (isPickled(original, at)) {
      continue;
    }
    for (const char value : changesOf(original.head[at])) {
      IncomingFrame changed = original;
      changed.head[at] = value;
      serving.deliver(changed);
    }
  }
  const size_t errors = serving.errors();
  CHECK(serving.calls() > original.head.size());
  CHECK(errors > 0);
  CHECK(errors < serving.calls());
}

TEST_CASE("a request cut short is answered by an error", "[server_hostile]") {
  const IncomingFrame original = GENERATE(ownFrame(), operatorFrame());
  HostileServing serving;
  for (size_t length = 0; length < original.head.size(); ++length) {
    IncomingFrame cut = original;
    cut.head.resize(length);
    CHECK(serving.deliver(cut) == (length >= FrameHeader::kSize));
  }
  CHECK(serving.errors() == serving.calls());
}

TEST_CASE("a request without its large parts is answered by an error", "[server_hostile]") {
  const at::Tensor large = at::arange(static_cast<int64_t>(inlineLimit()), at::kByte);
  const IncomingFrame whole =
      frameOf(1, messageOf(std::string(inlineLimit(), 'p'), kOwnRequest, {large})).frame;
  HostileServing serving;
  REQUIRE(serving.deliver(whole));
  REQUIRE(serving.errors() == 0);
  IncomingFrame incomplete = whole;
  incomplete.payloads.clear();
  serving.deliver(incomplete);
  incomplete = whole;
  incomplete.payloads[0].pop_back();
  serving.deliver(incomplete);
  incomplete = whole;
  incomplete.tensors.clear();
  serving.deliver(incomplete);
  incomplete = whole;
  incomplete.tensors[0].length -= 1;
  serving.deliver(incomplete);
  CHECK(serving.errors() == 4);
}
