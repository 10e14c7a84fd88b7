#include "backend/tensorpipe/choice.h"

#include <algorithm>

namespace torchwire {
namespace {

Objection ofThePeer(const std::string& name, const Offered& peers, const std::string& option) {
  const auto found = std::find_if(
      peers.leftOut.begin(), peers.leftOut.end(),
      [&](const NotTaken& one) { return one.name == name; });
  if (found == peers.leftOut.end()) {
    return {
        "the other worker's options leave it out",
        "give both workers the same " + option + ", or none"};
  }
  return {"it does not work for the other worker: " + found->reason, found->remedy};
}

std::optional<Objection> objectionTo(
    const Candidate& candidate, const Offered& peers, const WhyApart& whyApart,
    const std::string& option) {
  if (candidate.objection) {
    return candidate.objection;
  }
  for (const auto& [name, descriptor] : peers.descriptors) {
    if (name == candidate.name) {
      return whyApart(name, descriptor);
    }
  }
  return ofThePeer(candidate.name, peers, option);
}

} // namespace

Choice choose(
    const std::vector<Candidate>& candidates, const Offered& peers, const WhyApart& whyApart,
    const std::string& option) {
  Choice choice{"none", {}};
  for (const Candidate& candidate : candidates) {
    auto objection = objectionTo(candidate, peers, whyApart, option);
    if (!objection) {
      choice.name = candidate.name;
      break;
    }
    choice.notTaken.push_back(
        {candidate.name, std::move(objection->reason), std::move(objection->remedy)});
  }
  return choice;
}

} // namespace torchwire
