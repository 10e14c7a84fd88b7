// Which transport and channel a link uses, by the order of preference and by what both workers have, and why not another.
// Knows nothing of TensorPipe, which decides by the same rule but does not tell.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/link/link.h"

namespace torchwire {

/// What speaks against a transport or channel, in a clause, and what to do about it (empty: nothing).
struct Objection {
  std::string reason;
  std::string remedy;
};

/// A transport or channel that this worker knows.
struct Candidate {
  std::string name;
  std::optional<Objection> objection; // why this worker does not offer it; none: it does
};

/// What a worker offers, by name: the transports, or the channels. A value.
struct Offered {
  std::vector<std::pair<std::string, std::string>> descriptors; // of where each reaches
  std::vector<NotTaken> leftOut; // what it would offer if it worked there
};

struct Choice {
  std::string name; // "none" where nothing is left
  std::vector<NotTaken> notTaken; // what was preferred, the best first
};

/// Why one that both have cannot be used between the two, by the peer's descriptor; none: it can.
using WhyApart =
    std::function<std::optional<Objection>(const std::string& name, const std::string& descriptor)>;

/// The first of the candidates, the best first, that both have and that reaches the peer. `option` is the one that names
/// them, for remedies.
Choice choose(
    const std::vector<Candidate>& candidates, const Offered& peers, const WhyApart& whyApart,
    const std::string& option);

} // namespace torchwire
