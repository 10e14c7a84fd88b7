#include "rref/lost_creation.h"

#include <exception>
#include <string>

#include "backend/base/call_error.h"
#include "backend/base/log.h"
#include "rref/context_view.h"
#include "rref/own_requests.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

/// Whether the request of a call will not reach its callee, as far as is known, though that goes on.
bool isLost(const Error& error) {
  switch (error.code()) {
    case ErrorCode::workerDied:
    case ErrorCode::peerLeft:
    case ErrorCode::shutDown:
      return false;
    case ErrorCode::linkBroken:
    case ErrorCode::badFrame: // else the callee has said that it has it
      return error.executed() != Executed::yes;
    default:
      return error.executed() == Executed::no;
  }
}

} // namespace

void tellOwnerIfLost(
    rpc::RRefContext& context, const rpc::UserRRef& user, const rpc::JitFuture& creation) {
  const auto failed = callErrorIn(creation.exception_ptr());
  if (!failed || !isLost(*failed)) {
    return;
  }
  const auto& agent = context.agent();
  try {
    agent->send(
        agent->getWorkerInfo(user.owner()),
        toMessage(
            LostCreation{
                toGlobalId(user.rrefId()), toGlobalId(user.forkId()), user.isPyObj(), *failed}));
  } catch (const std::exception& e) {
    log(LogLevel::info,
        std::string("an RRef's owner was not told that its creation failed: ") + e.what());
  }
}

} // namespace torchwire
