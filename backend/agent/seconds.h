// PyTorch's times to ours.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace torchwire {

inline std::chrono::milliseconds fromSeconds(float seconds) {
  const float longest = 1e9F; // seconds: some 30 years, which a time point can still be moved by
  return std::chrono::milliseconds(
      static_cast<int64_t>(
          std::min(seconds, longest) * torch::distributed::rpc::kSecToMsConversion));
}

} // namespace torchwire
