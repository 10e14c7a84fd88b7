// A server between its links and its handlers.

#include "backend/serve/server.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <pthread.h>
#include <torch/csrc/autograd/profiler.h>

#include <catch2/catch.hpp>

#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/thread_role.h"
#include "backend/serve/response.h"
#include "backend/wire/inline_limit.h"
#include "test/unit/serve/sample_requests.h"
#include "test/unit/support/serving_worker.h"
#include "test/unit/support/stand_in_agent.h"

namespace rpc = torch::distributed::rpc;
using namespace torchwire;
using Catch::Contains;

namespace {

constexpr WorkerId kCaller = 1;
constexpr WorkerId kOtherCaller = 2;

using Response = c10::intrusive_ptr<rpc::JitFuture>;

Response pending() {
  return c10::make_intrusive<rpc::JitFuture>(messageType());
}

Response respondWith(const std::string& payload) {
  return completed(messageOf(payload, kOwnResponse));
}

std::string threadName() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

/// Holds the thread that passes it until the test opens it.
class Gate {
 public:
  void pass() {
    entered_.set_value();
    opened_.get_future().wait();
  }
  void awaitEntered() {
    REQUIRE(entered_.get_future().wait_for(Notifier::kPatience) == std::future_status::ready);
  }
  void open() {
    opened_.set_value();
  }

 private:
  std::promise<void> entered_;
  std::promise<void> opened_;
};

} // namespace

TEST_CASE("a request reaches its handler whole, and the response its caller", "[server]") {
  const auto size = GENERATE(size_t{3}, inlineLimit());
  const std::string payload(size, 'p');
  const at::Tensor tensor = at::arange(static_cast<int64_t>(size), at::kByte);
  ServingWorker worker;
  std::vector<std::pair<WorkerId, int64_t>> calls;
  worker.dispatcher().handleOwn(kOwnRequest, [&](WorkerId caller, rpc::Message& request) {
    calls.emplace_back(caller, request.id());
    return completed(
        messageOf(payloadOf(request) + "!", kOwnResponse, {request.tensors().at(0).add(1)}));
  });
  const uint64_t callId = uint64_t{1} << 40;
  const auto response = worker.call(kCaller, callId, messageOf(payload, kOwnRequest, {tensor}));
  CHECK(calls == std::vector<std::pair<WorkerId, int64_t>>{{kCaller, int64_t{1} << 40}});
  CHECK(response->type() == kOwnResponse);
  CHECK(response->id() == int64_t{1} << 40);
  CHECK((payloadOf(*response) == payload + "!"));
  REQUIRE(response->tensors().size() == 1);
  CHECK(response->tensors()[0].equal(tensor.add(1)));
  CHECK(worker.responses().total() == 1);
}

TEST_CASE("a call of a builtin operator is served", "[server]") {
  ServingWorker worker;
  const auto response = worker.call(kCaller, 1, addition(2, 40));
  CHECK(valueOf(*response).toTensor().item<double>() == 42);
  const auto failed = worker.call(
      kCaller, 2,
      operatorCall("aten::add", "Tensor", {at::arange(2), at::arange(3), at::Scalar(1)}));
  CHECK(isError(*failed));
  CHECK_THAT(payloadOf(*failed), Contains("must match"));
}

TEST_CASE("callers that use the same numbers are told apart", "[server]") {
  ServingWorker worker;
  worker.dispatcher().handleOwn(kOwnRequest, [](WorkerId caller, rpc::Message&) {
    return respondWith(std::to_string(caller));
  });
  CHECK(payloadOf(*worker.call(kCaller, 7, messageOf("", kOwnRequest))) == "1");
  CHECK(payloadOf(*worker.call(kOtherCaller, 7, messageOf("", kOwnRequest))) == "2");
}

TEST_CASE("a handler that throws is answered by its error", "[server]") {
  ServingWorker worker;
  worker.dispatcher().handleOwn(kOwnRequest, [](WorkerId, rpc::Message&) -> Response {
    throw std::runtime_error("of no use");
  });
  const auto response = worker.call(kCaller, 5, messageOf("", kOwnRequest));
  CHECK(isError(*response));
  CHECK(response->id() == 5);
  CHECK(payloadOf(*response) == "Error on Node 3: of no use");
}

TEST_CASE("an answer may come later, from another thread", "[server]") {
  ServingWorker worker(1);
  const Response later = pending();
  worker.dispatcher().handleOwn(kOwnRequest, [&](WorkerId, rpc::Message&) { return later; });
  worker.dispatcher().handleOwn(
      kOtherOwnRequest, [](WorkerId, rpc::Message&) { return respondWith("another"); });
  worker.deliver(kCaller, 1, messageOf("", kOwnRequest));
  worker.call(kCaller, 2, messageOf("", kOtherOwnRequest)); // its only thread is free again
  CHECK(worker.responses().total() == 1);
  CHECK(worker.server().metrics().active == 1);
  CHECK(worker.server().metrics().activeAsync == 1);

  bool fails = false;
  SECTION("with a value") {
    std::thread([&] { complete(*later, messageOf("late", kOwnResponse)); }).join();
  }
  SECTION("with an error") {
    fails = true;
    std::thread([&] {
      later->setError(std::make_exception_ptr(std::runtime_error("late")));
    }).join();
  }
  const auto response = worker.responses().waitFor(kCaller, 1);
  CHECK(isError(*response) == fails);
  CHECK(payloadOf(*response) == "late");
  CHECK(worker.server().metrics().active == 0);
  CHECK(worker.server().metrics().activeAsync == 0);
  CHECK(worker.responses().total() == 2);
}

TEST_CASE("an answer is sent even when the worker's agent has gone", "[server]") {
  const auto log = std::make_shared<ResponseLog>();
  const Response later = pending();
  const at::Tensor tensor = at::arange(static_cast<int64_t>(inlineLimit()), at::kByte);
  {
    ServingWorker worker(2, log);
    worker.dispatcher().handleOwn(kOwnRequest, [&](WorkerId, rpc::Message&) { return later; });
    worker.deliver(kCaller, 1, messageOf("", kOwnRequest));
  }
  CHECK(log->total() == 0);
  complete(*later, messageOf("late", kOwnResponse, {tensor}));
  const auto response = log->waitFor(kCaller, 1);
  CHECK(payloadOf(*response) == "late");
  CHECK(response->tensors().at(0).equal(tensor));
}

TEST_CASE("a response that cannot be sent is an error that says why", "[server]") {
  ServingWorker worker;
  SECTION("for a tensor of it") {
    worker.dispatcher().handleOwn(kOwnRequest, [](WorkerId, rpc::Message&) {
      return completed(messageOf("", kOwnResponse, {at::empty({2}, at::TensorOptions(at::kMeta))}));
    });
    const auto response = worker.call(kCaller, 1, messageOf("", kOwnRequest));
    CHECK(isError(*response));
    CHECK_THAT(payloadOf(*response), Contains("only supports CPU tensors by default"));
  }
  SECTION("since it is no message") {
    worker.dispatcher().handleOwn(kOwnRequest, [](WorkerId, rpc::Message&) {
      auto wrong = c10::make_intrusive<rpc::JitFuture>(at::IntType::get());
      wrong->markCompleted(at::IValue(1));
      return wrong;
    });
    const auto response = worker.call(kCaller, 1, messageOf("", kOwnRequest));
    CHECK(isError(*response));
    CHECK(response->id() == 1);
  }
  CHECK(worker.server().metrics().active == 0);
}

TEST_CASE("a request runs on a thread of the pool for its type", "[server]") {
  ServingWorker worker;
  worker.dispatcher().handleOwn(
      kOwnRequest, [](WorkerId, rpc::Message&) { return respondWith(threadName()); });
  worker.dispatcher().handle(rpc::MessageType::SCRIPT_CALL, [](WorkerId, rpc::RpcCommandBase&) {
    return respondWith(threadName());
  });
  CHECK(
      payloadOf(*worker.call(kCaller, 1, messageOf("", kOwnRequest))) ==
      ServingWorker::kControlThread);
  CHECK(payloadOf(*worker.call(kCaller, 2, addition(1, 2))) == ServingWorker::kRequestThread);
}

TEST_CASE("functions that block do not hold up requests that keep books", "[server]") {
  ServingWorker worker(1);
  Gate gate;
  worker.dispatcher().handle(rpc::MessageType::SCRIPT_CALL, [&](WorkerId, rpc::RpcCommandBase&) {
    gate.pass();
    return respondWith("function");
  });
  worker.dispatcher().handleOwn(
      kOwnRequest, [](WorkerId, rpc::Message&) { return respondWith("books"); });
  worker.deliver(kCaller, 1, addition(1, 2));
  gate.awaitEntered();
  CHECK(payloadOf(*worker.call(kCaller, 2, messageOf("", kOwnRequest))) == "books");
  CHECK(worker.responses().total() == 1);
  CHECK(worker.server().metrics().active == 1);
  gate.open();
  CHECK(payloadOf(*worker.responses().waitFor(kCaller, 1)) == "function");
}

TEST_CASE("a request is refused once the threads have ended, those before are served", "[server]") {
  constexpr int kCalls = 10;
  ServingWorker worker(1);
  Gate gate;
  int served = 0;
  worker.dispatcher().handleOwn(kOwnRequest, [&](WorkerId, rpc::Message&) {
    if (++served == 1) {
      gate.pass();
    }
    return respondWith("");
  });
  for (int id = 1; id <= kCalls; ++id) {
    CHECK(worker.deliver(kCaller, id, messageOf("", kOwnRequest)));
  }
  gate.awaitEntered();
  CHECK(worker.server().metrics().active == kCalls);
  gate.open();
  worker.control().join();
  CHECK(worker.responses().total() == size_t{kCalls});

  CHECK_FALSE(worker.deliver(kCaller, kCalls + 1, messageOf("", kOwnRequest)));
  CHECK(served == kCalls);
  CHECK(worker.responses().total() == size_t{kCalls});
  CHECK(worker.server().metrics().active == 0);
  CHECK(worker.deliver(kCaller, kCalls + 2, addition(1, 2))); // the other pool's
  worker.responses().waitFor(kCaller, kCalls + 2);
}

TEST_CASE("a request of our own that comes twice is served once", "[server]") {
  ServingWorker worker(1);
  const Response later = pending();
  int served = 0;
  worker.dispatcher().handleOwn(kOwnRequest, [&](WorkerId, rpc::Message&) {
    ++served;
    return later;
  });
  worker.dispatcher().handleOwn(
      kOtherOwnRequest, [](WorkerId, rpc::Message&) { return respondWith("another"); });
  CHECK(worker.deliver(kCaller, 1, messageOf("", kOwnRequest)));
  CHECK(worker.deliver(kCaller, 1, messageOf("", kOwnRequest)));
  complete(*later, messageOf("", kOwnResponse));
  worker.responses().waitFor(kCaller, 1);
  CHECK(worker.deliver(kCaller, 1, messageOf("", kOwnRequest))); // also after it was answered
  worker.call(kCaller, 2, messageOf("", kOtherOwnRequest));
  CHECK(served == 1);
  CHECK(worker.responses().count(kCaller, 1) == 1);
  CHECK(worker.server().metrics().active == 0);
}

TEST_CASE("a call of a function that comes twice is served twice", "[server]") {
  ServingWorker worker;
  CHECK(worker.deliver(kCaller, 1, addition(1, 2)));
  CHECK(worker.deliver(kCaller, 1, addition(1, 2)));
  CHECK(worker.responses().waitForTotal(2));
  CHECK(worker.responses().count(kCaller, 1) == 2);
}

TEST_CASE("who comes back after it was lost counts its calls anew", "[server]") {
  ServingWorker worker(1);
  const Response early = pending();
  int served = 0;
  worker.dispatcher().handleOwn(kOwnRequest, [&](WorkerId, rpc::Message&) {
    return ++served == 1 ? early : respondWith("next");
  });
  worker.deliver(kCaller, 1, messageOf("", kOwnRequest));
  worker.call(kOtherCaller, 1, messageOf("", kOwnRequest));
  CHECK(worker.server().callerLost(kCaller).empty());
  CHECK(payloadOf(*worker.call(kCaller, 1, messageOf("", kOwnRequest))) == "next");

  worker.deliver(kOtherCaller, 1, messageOf("", kOwnRequest)); // not lost: still a copy
  worker.call(kCaller, 2, messageOf("", kOwnRequest));
  CHECK(served == 4);
  CHECK(worker.responses().count(kOtherCaller, 1) == 1);

  // What ran before goes on to its end; whether anyone is there to answer is for the links to know.
  complete(*early, messageOf("early", kOwnResponse));
  CHECK(worker.responses().waitForTotal(4));
  CHECK(worker.responses().count(kCaller, 1) == 2);
  CHECK(worker.server().metrics().active == 0);
}

TEST_CASE("what a request leaves in its thread's state is gone for the next", "[server]") {
  namespace profiler = torch::autograd::profiler;
  ServingWorker worker(1);
  bool fails = false;
  SECTION("when it returns") {
    fails = false;
  }
  SECTION("when it fails") {
    fails = true;
  }
  worker.dispatcher().handleOwn(kOwnRequest, [&](WorkerId, rpc::Message&) -> Response {
    c10::GradMode::set_enabled(false);
    profiler::enableProfilerLegacy(profiler::ProfilerConfig(profiler::ProfilerState::CPU));
    TORCH_CHECK(!fails, "of no use");
    return respondWith("");
  });
  worker.dispatcher().handleOwn(kOtherOwnRequest, [](WorkerId, rpc::Message&) {
    return respondWith(
        std::string(c10::GradMode::is_enabled() ? "" : "no grad ") +
        (profiler::profilerEnabled() ? "profiler" : ""));
  });
  worker.call(kCaller, 1, messageOf("", kOwnRequest));
  CHECK(payloadOf(*worker.call(kCaller, 2, messageOf("", kOtherOwnRequest))) == "");
}

TEST_CASE("what a response keeps does not end on the thread that sends it", "[server]") {
  StandInAgent::instance();
  const char* poolThread = "test_pool";
  const auto pool = std::make_shared<ThreadPool>(1, poolThread);
  std::vector<char> memory(inlineLimit());
  std::promise<std::string> endedOn;
  std::promise<OutgoingFrame> sent;
  Dispatcher dispatcher;
  dispatcher.handleOwn(kOwnRequest, [&](WorkerId, rpc::Message&) {
    const at::Tensor tensor = at::from_blob(
        memory.data(), {static_cast<int64_t>(memory.size())},
        [&](void*) { endedOn.set_value(threadName()); }, at::kByte);
    return completed(messageOf("", kOwnResponse, {tensor}));
  });
  const auto devices = std::make_shared<cuda::GroupDevices>(cuda::DeviceRecord());
  const auto server = std::make_shared<Server>(
      dispatcher, [&](uint32_t, Task&& task) { return pool->run(std::move(task)); }, Disposer(pool),
      [&](WorkerId, OutgoingFrame frame) { sent.set_value(std::move(frame)); }, devices,
      std::make_shared<cuda::Transfers>(0, devices, pool, ""), pool,
      std::make_shared<CallMetrics>());
  REQUIRE(server->serve(kCaller, frameOf(1, messageOf("", kOwnRequest))));
  OutgoingFrame frame = sent.get_future().get();
  CHECK(frame.tensors.size() == 1);
  std::promise<void> idle; // until then the handler's future still has the message
  REQUIRE(pool->run(Task([&] { idle.set_value(); })));
  idle.get_future().wait();

  auto ended = endedOn.get_future();
  CHECK(ended.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  {
    const SendScope sending;
    frame = OutgoingFrame();
  }
  REQUIRE(ended.wait_for(Notifier::kPatience) == std::future_status::ready);
  CHECK(ended.get() == poolThread);
}
