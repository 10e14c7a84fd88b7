#include "autograd/engine_service.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/functions/sendrpc_backward.h>

#include <algorithm>
#include <exception>
#include <functional>

#include "autograd/pass/pass_messages.h"
#include "backend/base/call_error.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"
#include "cuda/streams.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using torch::distributed::autograd::DistAutogradContainer;
using Future = c10::intrusive_ptr<rpc::JitFuture>;

Future openFuture() {
  return c10::make_intrusive<rpc::JitFuture>(at::AnyClassType::get());
}

void fail(rpc::JitFuture& future, const Error& error) {
  future.setError(exceptionOf(error));
}

/// A reply that completes the future with what it gets, as a message of type `type`.
template <typename Result>
std::function<void(const Error&, const Result&)> replyTo(
    const Future& future, rpc::MessageType type) {
  return [future, type](const Error& error, const Result& result) {
    if (error) {
      fail(*future, error);
    } else {
      complete(*future, messageOf(encode(result), type));
    }
  };
}

/// The gradients on the devices of the tensors that they are for, which a device map does not always say: tensors of two
/// devices may have come to one, the CPU's among them.
std::vector<at::Tensor> onDevicesOf(
    const torch::autograd::Node& send, std::vector<at::Tensor> gradients) {
  const at::NoGradGuard noGrad;
  const size_t count = std::min<size_t>(gradients.size(), send.num_outputs());
  for (size_t i = 0; i < count; ++i) {
    const auto& edge = send.next_edge(i);
    if (!edge.is_valid() || !gradients[i].defined()) {
      continue;
    }
    const c10::Device device = edge.function->input_metadata(edge.input_nr).device();
    if (gradients[i].device() != device) {
      gradients[i] = gradients[i].to(device);
    }
  }
  return gradients;
}

Future serveGradients(PassTable& passes, const BackwardTrace& trace, const rpc::Message& request) {
  const GradientsHead head = decodeGradientsHead(request.payload());
  trace.received(head.pass);
  auto future = openFuture();
  const auto attach = [&head, &request] {
    const auto send = DistAutogradContainer::getInstance()
                          .retrieveContext(head.pass.context)
                          ->retrieveSendFunction(head.send);
    std::vector<at::Tensor> gradients = onDevicesOf(*send, request.tensors());
    cuda::handOver(gradients, send->stream());
    send->setGrads(std::move(gradients));
  };
  passes.gradients(head, attach, replyTo<Report>(future, own_messages::kGradientsDone));
  return future;
}

Future serveDiscover(PassTable& passes, const rpc::Message& request) {
  auto future = openFuture();
  passes.discover(
      decodeDiscoverRequest(request.payload()),
      replyTo<Discovered>(future, own_messages::kDiscovered));
  return future;
}

Future serveResume(PassTable& passes, const rpc::Message& request) {
  auto future = openFuture();
  passes.resume(decodePassId(request.payload()), replyTo<Report>(future, own_messages::kResumed));
  return future;
}

Future serveEndPass(PassTable& passes, WorkerId caller, const rpc::Message& request) {
  auto future = openFuture();
  passes.endPass(decodeEndRequest(request.payload()), caller, [future](const PassEnded& ended) {
    complete(*future, messageOf(encode(ended), own_messages::kPassEnded));
  });
  return future;
}

} // namespace

void serveEngines(Dispatcher& dispatcher, PassTable& passes, const BackwardTrace& trace) {
  using namespace own_messages;
  dispatcher.handleOwn(kGradients, [&passes, &trace](WorkerId, rpc::Message& request) {
    return serveGradients(passes, trace, request);
  });
  dispatcher.handleOwn(kDiscover, [&passes](WorkerId, rpc::Message& request) {
    return serveDiscover(passes, request);
  });
  dispatcher.handleOwn(
      kResume, [&passes](WorkerId, rpc::Message& request) { return serveResume(passes, request); });
  dispatcher.handleOwn(kEndPass, [&passes](WorkerId caller, rpc::Message& request) {
    return serveEndPass(passes, caller, request);
  });
}

} // namespace torchwire
