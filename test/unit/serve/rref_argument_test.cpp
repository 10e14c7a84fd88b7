// Requests with RRefs in their arguments: a function waits until the owners know of them.

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/rpc/rref_context.h>

#include <catch2/catch.hpp>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/serve/dispatcher.h"
#include "backend/serve/response.h"
#include "test/unit/serve/sample_requests.h"
#include "test/unit/support/stand_in_agent.h"

namespace rpc = torch::distributed::rpc;
using namespace torchwire;

namespace {

constexpr WorkerId kCaller = 1;
constexpr WorkerId kOwner = 2;

/// A dispatcher whose functions go on, once they may, when the test says so.
struct Dispatching {
  Dispatching() {
    StandInAgent::instance().takeSent();
    dispatcher.runFunctionsOn([this](Task&& task) {
      if (accepts) {
        handedOver.push_back(std::move(task));
      }
      return accepts;
    });
    dispatcher.handle(
        rpc::MessageType::SCRIPT_CALL,
        [this](WorkerId caller, rpc::RpcCommandBase&) -> c10::intrusive_ptr<rpc::JitFuture> {
          callers.push_back(caller);
          c10::GradMode::set_enabled(false);
          if (fails) {
            throw std::runtime_error("of no use");
          }
          return completed(messageOf("done", kOwnResponse));
        });
  }

  c10::intrusive_ptr<rpc::JitFuture> process(at::IValue rref) {
    return dispatcher.process(kCaller, *callWithRRef(std::move(rref)));
  }

  Dispatcher dispatcher;
  std::vector<Task> handedOver;
  std::vector<WorkerId> callers; // of functions that have run
  bool accepts = true;
  bool fails = false;
};

/// An RRef of another worker's.
at::IValue foreignRRef() {
  auto rref = rpc::RRefContext::getInstance().createUserRRef(kOwner, at::TensorType::get());
  return at::IValue(c10::static_intrusive_pointer_cast<c10::RRefInterface>(std::move(rref)));
}

/// A call from `kCaller` with an RRef of this worker's, which has not heard of it.
c10::intrusive_ptr<rpc::Message> callWithOwnRRef() {
  // As a pickle: the owner, two ids, the parent, which is the one that has sent it; each number behind a K.
  std::string body = payloadOf(*callWithRRef(foreignRRef()));
  const size_t owner = body.find({'K', static_cast<char>(kOwner)});
  const size_t parent = body.rfind({'K', static_cast<char>(StandInAgent::kSelf)});
  REQUIRE(owner < parent);
  REQUIRE(parent < body.size());
  body[owner + 1] = static_cast<char>(StandInAgent::kSelf);
  body[parent + 1] = static_cast<char>(kCaller);
  return messageOf(body, rpc::MessageType::SCRIPT_CALL);
}

/// The owner confirms all RRefs that it has been asked about. How many these were.
size_t confirmAll() {
  size_t asked = 0;
  for (const StandInAgent::Sent& sent : StandInAgent::instance().takeSent()) {
    if (sent.type == rpc::MessageType::RREF_FORK_REQUEST) {
      CHECK(sent.to == kOwner);
      ++asked;
    }
    complete(*sent.response, messageOf("", rpc::MessageType::RREF_ACK));
  }
  return asked;
}

} // namespace

TEST_CASE("a function waits until the owner of its RRef knows of it", "[rref_argument]") {
  Dispatching worker;
  SECTION("and returns") {
    worker.fails = false;
  }
  SECTION("and fails") {
    worker.fails = true;
  }
  const auto response = worker.process(foreignRRef());
  CHECK_FALSE(response->completed());
  CHECK(worker.callers.empty());

  CHECK(confirmAll() == 1);
  CHECK(worker.callers.empty()); // not on the thread that confirms, which completes calls
  REQUIRE(worker.handedOver.size() == 1);

  worker.handedOver[0]();
  CHECK(worker.callers == std::vector{kCaller});
  REQUIRE(response->completed());
  REQUIRE_FALSE(response->hasError());
  const auto message = response->value().toCustomClass<rpc::Message>();
  CHECK(isError(*message) == worker.fails);
  CHECK(payloadOf(*message) == (worker.fails ? "Error on Node 3: of no use" : "done"));
  CHECK(c10::GradMode::is_enabled()); // what the function has left in the thread's state is gone
}

TEST_CASE("a function that had to wait runs even where no thread takes it", "[rref_argument]") {
  Dispatching worker;
  worker.accepts = false;
  const auto response = worker.process(foreignRRef());
  CHECK_FALSE(response->completed());
  CHECK(confirmAll() == 1);
  CHECK(worker.callers == std::vector{kCaller});
  CHECK(response->completed());
  CHECK(c10::GradMode::is_enabled());
}

TEST_CASE("a request that fails does not make the next one wait for its RRefs", "[rref_argument]") {
  Dispatching worker;
  auto broken = operatorCall("aten::add", "Tensor", {foreignRRef(), at::IValue(1)});
  std::vector<char> body = std::as_const(*broken).payload();
  body.resize(body.size() - 2); // breaks off behind the RRef
  const auto failed = worker.dispatcher.process(
      kCaller, *messageOf(std::move(body), rpc::MessageType::SCRIPT_CALL));
  REQUIRE(failed->completed());
  CHECK(isError(*failed->value().toCustomClass<rpc::Message>()));
  CHECK(worker.callers.empty());

  c10::AutoGradMode restored(true);
  const auto next = worker.process(at::IValue(1));
  CHECK(next->completed());
  CHECK(worker.callers.size() == 1);
  CHECK(confirmAll() == 1); // of the one that failed
}

TEST_CASE("that an RRef of this worker's has come early is told", "[rref_argument]") {
  Dispatching worker;
  int owners = 0;
  worker.dispatcher.whenOwnerUnpickled([&] { ++owners; });
  c10::AutoGradMode restored(true);
  CHECK(worker.process(at::IValue(1))->completed());
  CHECK(owners == 0);
  CHECK(worker.dispatcher.process(kCaller, *callWithOwnRRef())->completed());
  CHECK(owners == 1);
  CHECK(worker.process(at::IValue(1))->completed());
  CHECK(owners == 1);
  CHECK(worker.callers == std::vector{kCaller, kCaller, kCaller});
}
