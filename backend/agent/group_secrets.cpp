#include "backend/agent/group_secrets.h"

#include <stdexcept>

namespace torchwire {

// Peers are let in by the new keys before anything is said under them.
void changeSecrets(AgentParts& parts, const std::vector<std::string>& secrets) {
  parts.expectOwnProcess();
  if (parts.options.secrets.empty() || secrets.empty() || !parts.keys) {
    throw std::runtime_error(
        "this worker cannot change the group's secret: it has not started, or has none of its own");
  }
  const std::vector<GroupKey> keys = parts.membership->keysOf(secrets);
  parts.keys->replace(keys);
  parts.membership->changeKeys(keys);
}

std::vector<std::string> secretLabels(const AgentParts& parts) {
  std::vector<std::string> labels;
  for (const GroupKey& key : parts.keys ? parts.keys->all() : std::vector<GroupKey>()) {
    labels.push_back(key.label());
  }
  return labels;
}

} // namespace torchwire
