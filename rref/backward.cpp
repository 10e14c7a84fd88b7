#include "rref/backward.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rref_backward_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rref_backward_resp.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <stdexcept>
#include <utility>

#include "backend/base/call_error.h"
#include "backend/serve/call_deadline.h"
#include "backend/serve/response.h"
#include "rref/context_lifetime.h"
#include "rref/failed_creation.h"
#include "rref/own_value.h"

namespace torchwire::rref {
namespace {

namespace rpc = torch::distributed::rpc;

/// The tensor in a value that has come from Python or from TorchScript.
at::Tensor tensorIn(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor();
  }
  at::Tensor tensor;
  if (value.isPyObject()) {
    const pybind11::gil_scoped_acquire gil;
    PyObject* const object = value.toPyObject(); // borrowed
    if (THPVariable_Check(object)) {
      tensor = THPVariable_Unpack(object);
    }
  }
  TORCH_CHECK(tensor.defined(), "RRef should contain a tensor for .backward()");
  return tensor;
}

void askOwner(const Ask& ask, const rpc::RRef& rref, int64_t contextId, bool retainGraph) {
  TORCH_CHECK(contextId != kNoContext, "User RRefs require 'dist_autograd_ctx_id' to be specified");
  torch::distributed::autograd::RRefBackwardReq request(rref.rrefId(), contextId, retainGraph);
  ask(std::move(request).toMessage());
}

/// Waits for it, until the calling thread's deadline.
const c10::IValue& valueOf(rpc::OwnerRRef& owner) {
  if (!owner.getFuture()->completed()) {
    awaitOwnValue(owner, CallDeadline::left());
  }
  if (!owner.getFuture()
           ->completed()) { // what a signal's handler has raised is thrown in the place of this
    throw CallError(Error(ErrorCode::cancelled, "the wait for an RRef's value was cancelled"));
  }
  return owner.getValue();
}

/// Starts the pass of a request with `value`, what the RRef refers to. Does not throw.
void start(
    Engine& engine, const c10::IValue& value, int64_t contextId, bool retainGraph,
    Engine::Done done) {
  torch::autograd::variable_list roots;
  try {
    roots.push_back(tensorIn(value));
  } catch (...) {
    done(std::current_exception());
    return;
  }
  engine.start(contextId, roots, retainGraph, std::move(done));
}

Engine::Done answering(c10::intrusive_ptr<rpc::JitFuture> response) {
  return [response = std::move(response)](const std::exception_ptr& error) {
    if (error) {
      response->setError(error);
    } else {
      complete(*response, torch::distributed::autograd::RRefBackwardResp().toMessage());
    }
  };
}

/// Runs the pass of a request.
c10::intrusive_ptr<rpc::JitFuture> runAsked(
    const std::weak_ptr<Engine>& engine, RRefService& rrefs, rpc::RpcCommandBase& command) {
  auto& request = static_cast<torch::distributed::autograd::RRefBackwardReq&>(command);
  auto response = c10::make_intrusive<rpc::JitFuture>(messageType());
  rrefs.valueFor(request.getRRefId())
      ->addCallback([engine, contextId = request.getAutogradContextId(),
                     retain = request.retainGraph(),
                     done = answering(response)](rpc::JitFuture& value) {
        const auto alive = engine.lock();
        if (value.hasError()) {
          done(value.exception_ptr());
        } else if (alive == nullptr) { // a value that came after the shutdown
          done(
              std::make_exception_ptr(
                  std::runtime_error("this worker has shut its RPC agent down")));
        } else {
          start(*alive, value.value(), contextId, retain, done);
        }
      });
  return response;
}

} // namespace

void backward(
    Engine& engine, const Ask& ask, const c10::intrusive_ptr<rpc::RRef>& rref, int64_t contextId,
    bool retainGraph) {
  if (!rref->isOwner()) {
    expectOfThisLifetime(*rref);
    throwCreationError(
        *rref,
        "no backward pass can start from an RRef of which it is possible that it does not exist.");
    askOwner(ask, *rref, contextId, retainGraph);
    return;
  }
  const auto owner = c10::static_intrusive_pointer_cast<rpc::OwnerRRef>(rref);
  const torch::autograd::variable_list roots{tensorIn(valueOf(*owner))};
  if (contextId == kNoContext) {
    torch::autograd::backward(roots);
  } else {
    engine.backward(contextId, roots, retainGraph);
  }
}

void serveBackward(
    Dispatcher& dispatcher, const std::weak_ptr<Engine>& engine,
    const std::shared_ptr<RRefService>& rrefs) {
  dispatcher.handle(
      rpc::MessageType::RREF_BACKWARD_REQ, [engine, rrefs](WorkerId, rpc::RpcCommandBase& command) {
        return runAsked(engine, *rrefs, command);
      });
}

} // namespace torchwire::rref
