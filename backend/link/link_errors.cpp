#include "backend/link/link_errors.h"

#include <utility>

namespace torchwire {

Error shutDownError() {
  return Error(ErrorCode::shutDown, "this worker is shutting down its RPC agent");
}

Error leftError(const WorkerRecord& peer, const std::string& reason) {
  return Error(
      ErrorCode::peerLeft,
      peer.describe() + " has left the RPC group" + (reason.empty() ? "" : ": " + reason));
}

Error diedError(const WorkerRecord& peer, const std::string& reason) {
  return Error(ErrorCode::workerDied, peer.describe() + " has died: " + reason);
}

std::string reasonOfDeath(const WorkerRecord& peer, const Error& died) {
  return died.message().substr(diedError(peer, "").message().size());
}

Error declaredDeadError(const std::string& reason) {
  return Error(
      ErrorCode::declaredDead,
      "this worker takes part in the RPC group no more, start it anew: " + reason);
}

Error lostError(const WorkerRecord& peer, const Error& cause) {
  const std::string what = "lost the connection to " + peer.describe() + " at " + peer.address;
  if (cause.code() == ErrorCode::badFrame || cause.code() == ErrorCode::refused) {
    // One of the two closed it because of a frame; both live, and the next call dials anew.
    const std::string who = cause.code() == ErrorCode::refused ? ": it closed the link: " : ": ";
    return Error(ErrorCode::linkBroken, what + who + cause.message());
  }
  const bool isSilent = cause.code() == ErrorCode::silent || cause.code() == ErrorCode::unreachable;
  return Error(
      isSilent ? cause.code() : ErrorCode::linkBroken,
      what + " (" + cause.message() + "): its process may have ended" +
          (isSilent ? " or stand still" : "") + ", see its log");
}

Error sendError(const std::string& peer, const Error& cause) {
  if (cause.code() == ErrorCode::injected) {
    return cause;
  }
  return Error(
      cause.code(),
      "lost the connection to " + peer + " while sending a call (" + cause.message() +
          "): its process may have ended, see its log");
}

Error dialError(const WorkerRecord& peer, const Error& cause) {
  if (cause.code() == ErrorCode::refused || cause.code() == ErrorCode::notAdmitted ||
      cause.code() == ErrorCode::declaredDead) {
    return Error(cause.code(), peer.describe() + " refused the connection: " + cause.message());
  }
  // Nothing has left this process, or one of the two is at a limit: the address is not the matter.
  if (cause.executed() == Executed::no) {
    const bool limit = cause.code() == ErrorCode::atLimit;
    return Error(
        limit ? ErrorCode::atLimit : ErrorCode::unreachable,
        "cannot connect to " + peer.describe() + ": " + cause.message());
  }
  return Error(
      cause.code() == ErrorCode::nobodyListens ? cause.code() : ErrorCode::unreachable,
      "cannot reach " + peer.describe() + " at " + peer.address + " (" + cause.message() +
          "): check that its process runs and that this host can connect to that address");
}

std::optional<std::string> objectionTo(const LinkDescription& description) {
  if (!description.objection.empty()) {
    return description.objection;
  }
  for (const auto& [what, name] :
       {std::pair("transport", description.transport), std::pair("channel", description.channel)}) {
    if (name == "none") {
      return std::string("it has no ") + what +
          " in common with this worker that works between the two: name one for both in _" + what +
          "s, or leave the option out";
    }
  }
  return std::nullopt;
}

} // namespace torchwire
