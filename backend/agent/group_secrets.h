// The group's secrets, while the worker runs.
#pragma once

#include <string>
#include <vector>

#include "backend/agent/agent_parts.h"

namespace torchwire {

/// The group's secrets are others from now on: this worker uses the first, and accepts all. On any thread that may block.
/// Throws std::runtime_error.
void changeSecrets(AgentParts& parts, const std::vector<std::string>& secrets);

/// By which the secrets are told apart, in the group: the first is of the one that this worker uses. None before it starts.
std::vector<std::string> secretLabels(const AgentParts& parts);

} // namespace torchwire
