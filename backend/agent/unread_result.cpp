#include "backend/agent/unread_result.h"

#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>
#include <torch/csrc/distributed/rpc/python_resp.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "autograd/direct_forward.h"
#include "backend/base/log.h"

namespace torchwire {
namespace {

namespace py = pybind11;
namespace rpc = torch::distributed::rpc;
using rpc::MessageType;
using rpc::RpcCommandBase;
using torch::distributed::autograd::RpcWithAutograd;

void dropPickled(std::string_view pickle) {
  if (pickle.find("_py_rref_receiver") == std::string_view::npos) { // as nearly always
    return;
  }
  const py::gil_scoped_acquire gil;
  try {
    py::module_::import("torchwire.unread_rrefs").attr("drop")(py::bytes(pickle));
  } catch (py::error_already_set& e) { // it raises no Exception, but Python may be about to end
    throw std::runtime_error(e.what()); // which needs no GIL to be destroyed
  }
}

/// Those of TorchScript go with the command. Python's are in a pickle, which is read only where it is asked for.
void dropRRefsIn(RpcCommandBase& command) {
  if (const auto* const result = dynamic_cast<rpc::PythonResp*>(&command)) {
    dropPickled(result->serializedPyObj().payload_);
  } else if (auto* const fetched = dynamic_cast<rpc::PythonRRefFetchRet*>(&command)) {
    dropPickled(fetched->values().back().toStringRef()); // behind the tensors
  }
}

void dropAllIn(const rpc::Message& response) {
  if (const auto direct = resultInDirectForward(response)) {
    dropPickled(*direct);
  } else if (response.type() == MessageType::FORWARD_AUTOGRAD_RESP) {
    dropRRefsIn(RpcWithAutograd::fromMessage(response)->wrappedRpc());
  } else {
    MessageType type = response.type();
    dropRRefsIn(*rpc::deserializeResponse(response, type));
  }
}

} // namespace

bool mayCarryRRefs(uint32_t messageType) {
  switch (static_cast<MessageType>(messageType)) {
    case MessageType::PYTHON_RET:
    case MessageType::PYTHON_RREF_FETCH_RET:
    case MessageType::SCRIPT_RET:
    case MessageType::SCRIPT_RREF_FETCH_RET:
    case MessageType::FORWARD_AUTOGRAD_RESP:
      return true;
    default:
      return false;
  }
}

void dropRRefsIn(const rpc::Message& response) {
  try {
    dropAllIn(response);
  } catch (const std::exception& e) {
    log(LogLevel::debug, std::string("RRefs in a late response may stay: ") + e.what());
  }
}

} // namespace torchwire
