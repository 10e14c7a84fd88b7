#include "backend/faults/fault_errors.h"

namespace torchwire::faults {
namespace {

std::string ruleOf(const Entry& fault) {
  return "rule '" + fault.rule + "' of the fault plan";
}

} // namespace

std::string failureText(const Entry& fault) {
  // The prefix is makeRPCError's of RPCErrorType::INTENTIONAL_FAILURE.
  return "RPCErr:2:a call from worker '" + fault.from + "' to worker '" + fault.to +
      "' failed on purpose, by " + ruleOf(fault);
}

std::string brokenLinkText(const Entry& fault) {
  // With that prefix too: by it libtorch knows that an RRef which was to be made here will not be.
  return "RPCErr:2:worker '" + fault.to +
      "' lost the connection to itself: " + brokenBy(fault).message();
}

Error failedBy(const Entry& fault) {
  return Error(ErrorCode::injected, failureText(fault));
}

Error brokenBy(const Entry& fault) {
  return Error(ErrorCode::linkBroken, "the link was broken on purpose, by " + ruleOf(fault));
}

Error refusedBy(const Entry& fault) {
  return Error(ErrorCode::linkBroken, "connection refused (injected by " + ruleOf(fault) + ")");
}

Error heldForEver() {
  return Error(
      ErrorCode::linkBroken,
      "a fault held it back, and by then this worker shut its RPC agent down");
}

Error closedMeanwhile() {
  return Error(ErrorCode::linkBroken, "the link was closed while a fault held it back");
}

} // namespace torchwire::faults
