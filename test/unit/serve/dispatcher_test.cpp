// Which handler serves a request, and what becomes of one that cannot be served.

#include "backend/serve/dispatcher.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>
#include <torch/csrc/distributed/rpc/profiler/server_process_global_profiler.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>

#include <catch2/catch.hpp>

#include <stdexcept>
#include <vector>

#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"
#include "test/unit/serve/sample_requests.h"
#include "test/unit/support/stand_in_agent.h"

namespace rpc = torch::distributed::rpc;
namespace processglobal = rpc::profiler::processglobal;
using namespace torchwire;
using Catch::Contains;
using Catch::StartsWith;

namespace {

constexpr WorkerId kCaller = 1;

/// A dispatcher of a worker that is part of a group.
struct Dispatching {
  Dispatching() {
    StandInAgent::instance();
  }

  /// Serves a request whose response is there at once.
  c10::intrusive_ptr<rpc::Message> process(const c10::intrusive_ptr<rpc::Message>& request) {
    const auto response = dispatcher.process(kCaller, *request);
    REQUIRE(response->completed());
    REQUIRE_FALSE(response->hasError());
    return response->value().toCustomClass<rpc::Message>();
  }

  /// The text of the error by which a request is answered.
  std::string errorOf(const c10::intrusive_ptr<rpc::Message>& request) {
    const auto response = process(request);
    REQUIRE(isError(*response));
    return payloadOf(*response);
  }

  Dispatcher dispatcher;
};

/// An addition of tensors whose shapes do not fit.
c10::intrusive_ptr<rpc::Message> failingCall() {
  return operatorCall("aten::add", "Tensor", {at::arange(2), at::arange(3), at::Scalar(1)});
}

c10::intrusive_ptr<rpc::Message> respondWith(const std::string& payload) {
  return messageOf(payload, kOwnResponse);
}

} // namespace

TEST_CASE("requests that keep books are told from those that run functions", "[dispatcher]") {
  for (const rpc::MessageType type :
       {rpc::MessageType::SCRIPT_RREF_FETCH_CALL, rpc::MessageType::PYTHON_RREF_FETCH_CALL,
        rpc::MessageType::RREF_USER_DELETE, rpc::MessageType::RREF_FORK_REQUEST,
        rpc::MessageType::RREF_CHILD_ACCEPT, rpc::MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ,
        own_messages::kGradients, own_messages::kDiscover, own_messages::kResume,
        own_messages::kEndPass, own_messages::kCreationSite, own_messages::kHoldersRequest}) {
    CAPTURE(static_cast<int>(type));
    CHECK(isControl(static_cast<uint32_t>(type)));
  }
  for (const rpc::MessageType type :
       {rpc::MessageType::SCRIPT_CALL, rpc::MessageType::PYTHON_CALL,
        rpc::MessageType::SCRIPT_REMOTE_CALL, rpc::MessageType::PYTHON_REMOTE_CALL,
        rpc::MessageType::FORWARD_AUTOGRAD_REQ, rpc::MessageType::RREF_BACKWARD_REQ,
        rpc::MessageType::RUN_WITH_PROFILING_REQ, own_messages::kGradientsDone}) {
    CAPTURE(static_cast<int>(type));
    CHECK_FALSE(isControl(static_cast<uint32_t>(type)));
  }
}

TEST_CASE("a request of our own reaches the handler of its type", "[dispatcher]") {
  Dispatching worker;
  WorkerId caller = -1;
  worker.dispatcher.handleOwn(kOwnRequest, [&](WorkerId from, rpc::Message& request) {
    caller = from;
    return completed(respondWith("one " + payloadOf(request)));
  });
  worker.dispatcher.handleOwn(kOtherOwnRequest, [](WorkerId, rpc::Message& request) {
    return completed(respondWith("other " + payloadOf(request)));
  });
  CHECK(payloadOf(*worker.process(messageOf("1", kOwnRequest))) == "one 1");
  CHECK(caller == kCaller);
  CHECK(payloadOf(*worker.process(messageOf("2", kOtherOwnRequest))) == "other 2");
}

TEST_CASE("a handler replaces the one before it", "[dispatcher]") {
  Dispatching worker;
  for (const char* name : {"first", "second"}) {
    worker.dispatcher.handleOwn(
        kOwnRequest, [name](WorkerId, rpc::Message&) { return completed(respondWith(name)); });
    worker.dispatcher.handle(rpc::MessageType::SCRIPT_CALL, [name](WorkerId, rpc::RpcCommandBase&) {
      return completed(respondWith(name));
    });
  }
  CHECK(payloadOf(*worker.process(messageOf("", kOwnRequest))) == "second");
  CHECK(payloadOf(*worker.process(addition(1, 2))) == "second");
}

TEST_CASE("the response that a handler will have is handed on as it is", "[dispatcher]") {
  Dispatching worker;
  const auto later = c10::make_intrusive<rpc::JitFuture>(messageType());
  worker.dispatcher.handleOwn(kOwnRequest, [&](WorkerId, rpc::Message&) { return later; });
  CHECK(worker.dispatcher.process(kCaller, *messageOf("", kOwnRequest)) == later);
}

TEST_CASE("what a handler throws is the answer, with this worker's number", "[dispatcher]") {
  Dispatching worker;
  worker.dispatcher.handleOwn(
      kOwnRequest, [](WorkerId, rpc::Message&) -> c10::intrusive_ptr<rpc::JitFuture> {
        throw std::runtime_error("of no use");
      });
  CHECK(worker.errorOf(messageOf("", kOwnRequest)) == "Error on Node 3: of no use");

  worker.dispatcher.handle(
      rpc::MessageType::SCRIPT_CALL,
      [](WorkerId, rpc::RpcCommandBase&) -> c10::intrusive_ptr<rpc::JitFuture> {
        TORCH_CHECK(false, "of libtorch's own kind");
      });
  CHECK_THAT(worker.errorOf(addition(1, 2)), StartsWith("Error on Node 3: of libtorch's own kind"));
}

TEST_CASE("a request of a type that nobody serves is answered by an error", "[dispatcher]") {
  Dispatching worker;
  CHECK_THAT(
      worker.errorOf(messageOf("", kOwnRequest)),
      StartsWith("Error on Node 3: ") && Contains("not supported"));
  for (const int type : {0, 0x3f, 0x7f, 0x17f, 0x27f, 0x1fff, -1}) {
    CAPTURE(type);
    CHECK_THAT(
        worker.errorOf(messageOf("", static_cast<rpc::MessageType>(type))),
        StartsWith("Error on Node 3: "));
  }
  CHECK_THAT(
      worker.errorOf(rpc::createExceptionResponse("a response is no request", 1)),
      StartsWith("Error on Node 3: "));
}

TEST_CASE("libtorch's own handlers are not reached without one of ours", "[dispatcher]") {
  Dispatching worker;
  const rpc::GloballyUniqueId id(1, 1);
  CHECK_THAT(
      worker.errorOf(rpc::ScriptRRefFetchCall(kCaller, id).toMessage()), Contains("not supported"));
  CHECK_THAT(
      worker.errorOf(rpc::PythonRRefFetchCall(kCaller, id).toMessage()), Contains("not supported"));
  CHECK_THAT(worker.errorOf(rpc::RRefUserDelete(id, id).toMessage()), Contains("not supported"));
  CHECK_THAT(
      worker.errorOf(
          rpc::ScriptRemoteCall(
              torch::jit::findOperatorFor({"aten::neg", ""}), {at::scalar_tensor(1)}, id, id)
              .toMessage()),
      Contains("not supported"));
}

TEST_CASE("a request from nobody in particular has a caller that is no worker", "[dispatcher]") {
  Dispatching worker;
  WorkerId caller = kCaller;
  worker.dispatcher.handleOwn(kOwnRequest, [&](WorkerId from, rpc::Message&) {
    caller = from;
    return completed(respondWith(""));
  });
  worker.dispatcher.processMessage(*messageOf("", kOwnRequest), {});
  CHECK(caller == -1);
}

TEST_CASE("a builtin operator is run, and its result is the response", "[dispatcher]") {
  Dispatching worker;
  const auto response = worker.process(addition(2, 40));
  CHECK(response->type() == rpc::MessageType::SCRIPT_RET);
  CHECK(valueOf(*response).toTensor().item<double>() == 42);
}

TEST_CASE("an operator that fails leaves what it says in the future", "[dispatcher]") {
  Dispatching worker;
  const auto response = worker.dispatcher.process(kCaller, *failingCall());
  REQUIRE(response->completed());
  REQUIRE(response->hasError());
  CHECK_THAT(response->tryRetrieveErrorMessage(), Contains("must match"));
}

TEST_CASE("a call whose bytes are no call is answered by an error", "[dispatcher]") {
  Dispatching worker;
  for (const char* body : {"", "x", "\x80\x02.", "no pickle at all"}) {
    CAPTURE(body);
    CHECK_THAT(
        worker.errorOf(messageOf(body, rpc::MessageType::SCRIPT_CALL)),
        StartsWith("Error on Node 3: "));
  }
}

TEST_CASE("gradients of libtorch's engine are refused with what to do instead", "[dispatcher]") {
  Dispatching worker;
  torch::distributed::autograd::PropagateGradientsReq request(
      torch::distributed::autograd::AutogradMetadata(1, 1), {at::arange(2.0)});
  CHECK_THAT(
      worker.errorOf(std::move(request).toMessage()),
      StartsWith("Error on Node 3: ") && Contains("torch.distributed.autograd.backward"));
}

TEST_CASE("a profile of all requests has each in it, also one that fails", "[dispatcher]") {
  Dispatching worker;
  std::vector<bool> profiled;
  worker.dispatcher.handle(
      rpc::MessageType::SCRIPT_CALL,
      [&](WorkerId, rpc::RpcCommandBase&) -> c10::intrusive_ptr<rpc::JitFuture> {
        profiled.push_back(torch::autograd::profiler::profilerEnabled());
        throw std::runtime_error("of no use");
      });
  worker.dispatcher.handleOwn(
      kOwnRequest, [](WorkerId, rpc::Message&) { return completed(respondWith("")); });
  processglobal::enableServer(
      torch::autograd::profiler::ProfilerConfig(torch::autograd::profiler::ProfilerState::CPU));
  worker.errorOf(addition(1, 2));
  CHECK_FALSE(torch::autograd::profiler::profilerEnabled());
  worker.errorOf(addition(1, 2));
  CHECK_FALSE(torch::autograd::profiler::profilerEnabled());
  worker.process(messageOf("books are not profiled", kOwnRequest));
  CHECK(processglobal::disableServer().size() == 2);

  worker.errorOf(addition(1, 2));
  CHECK(profiled == std::vector<bool>{true, true, false});
}
