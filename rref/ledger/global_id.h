// The id of an RRef or a fork, without torch.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace torchwire {

/// PyTorch's GloballyUniqueId: the worker that drew the number, and the number. A value.
struct GlobalId {
  int32_t createdOn = -1;
  int64_t localId = 0;

  auto operator<=>(const GlobalId&) const = default;
};

struct GlobalIdHash {
  size_t operator()(const GlobalId& id) const {
    const auto worker = static_cast<uint64_t>(static_cast<uint32_t>(id.createdOn));
    return std::hash<uint64_t>()((worker << 48U) ^ static_cast<uint64_t>(id.localId));
  }
};

} // namespace torchwire
