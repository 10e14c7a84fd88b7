// The RRefs of this worker, for people: torchwire.rrefs() and the leak report.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "rref/ledger/global_id.h"
#include "rref/rref_service.h"

namespace torchwire {

struct ForkStatus {
  std::string id;
  std::string holder; // empty: on its way, or its worker did not answer
};

struct RRefStatus {
  bool isOwner;
  std::string id;
  std::string owner;
  std::string type; // empty: the function that makes the value still runs
  std::vector<ForkStatus> forks; // of a user: its own
  double ageSeconds;
  bool confirmed; // an owner: its value is there. A user: its owner knows it
  std::string site; // empty: not recorded
};

/// All owners and users on this worker. Asks the peers where those forks are that this worker has handed out
/// itself, all at once, and does without the answers that take longer than `patience`. Call it without the GIL.
std::vector<RRefStatus> rrefsOf(RRefService& service, std::chrono::milliseconds patience);

} // namespace torchwire
