// Envelopes of direct calls in autograd contexts, as no worker writes them.
#include "autograd/direct_forward.h"

#include <catch2/catch.hpp>

#include <vector>

#include "backend/base/bytes.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"

namespace rpc = torch::distributed::rpc;
using namespace torchwire;

namespace {

constexpr WorkerId kCaller = 1;
constexpr int64_t kContext = 5;

/// The envelope of FORWARD_AUTOGRAD messages, with `inner` in it.
std::vector<char> envelope(std::vector<char> inner) {
  std::vector<char> body;
  ByteWriter out(body);
  out.number(own_messages::direct_body::kForward);
  out.number(kContext);
  out.number(int64_t{1});
  out.raw(inner.data(), inner.size());
  return body;
}

void serve(std::vector<char> body) {
  const auto request = messageOf(std::move(body), rpc::MessageType::FORWARD_AUTOGRAD_REQ);
  serveDirectForward(
      kCaller, *request, /* mapBack */ {}, [](rpc::Message&) -> c10::intrusive_ptr<rpc::JitFuture> {
        FAIL("a malformed call was run");
        return {};
      });
}

void receive(std::vector<char> body) {
  auto response = messageOf(std::move(body), rpc::MessageType::FORWARD_AUTOGRAD_RESP);
  receiveDirectForward(kCaller, kContext, response);
}

} // namespace

TEST_CASE("A request's envelope that is cut short is refused", "[direct_forward]") {
  const std::vector<char> whole = envelope({});
  for (size_t length = 1; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK_THROWS_AS(serve({whole.begin(), whole.begin() + length}), FormatError);
  }
}

TEST_CASE("A request's envelope without a direct call in it is refused", "[direct_forward]") {
  CHECK_THROWS_AS(serve(envelope({})), FormatError);
  CHECK_THROWS_AS(serve(envelope({0})), FormatError);
  CHECK_THROWS_AS(serve(envelope({own_messages::direct_body::kResult})), FormatError);
  CHECK_THROWS_AS(serve(envelope({own_messages::direct_body::kForward})), FormatError);
}

TEST_CASE("A response's envelope that is cut short is refused", "[direct_forward]") {
  const std::vector<char> whole = envelope({});
  for (size_t length = 1; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK_THROWS_AS(receive({whole.begin(), whole.begin() + length}), FormatError);
  }
}

TEST_CASE("A response of another context than its call's is refused", "[direct_forward]") {
  auto response = messageOf(
      envelope({own_messages::direct_body::kResult}), rpc::MessageType::FORWARD_AUTOGRAD_RESP);
  CHECK_THROWS_AS(receiveDirectForward(kCaller, kContext + 1, response), FormatError);
  CHECK_THROWS_AS(receiveDirectForward(kCaller, std::nullopt, response), FormatError);
}

TEST_CASE("Messages that libtorch has written stay as they are", "[direct_forward]") {
  auto response = messageOf({'\x80', 2}, rpc::MessageType::FORWARD_AUTOGRAD_RESP);
  const auto* const before = response.get();
  receiveDirectForward(kCaller, kContext, response);
  CHECK(response.get() == before);
  CHECK_FALSE(
      contextOfDirectForward(*messageOf({'\x80', 2}, rpc::MessageType::FORWARD_AUTOGRAD_REQ)));
}
