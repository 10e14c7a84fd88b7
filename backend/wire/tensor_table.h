// The numbers in a tensor table, for the one that writes it and the one that reads it. docs/protocol.md
// has the fields.
#pragma once

#include <cstdint>

namespace torchwire {

enum class TensorKind : uint8_t {
  undefined = 0,
  strided = 1,
  sparseCoo = 2, // indices, values
  sparseCompressed = 3, // compressed indices, plain indices, values
  quantizedPerTensor = 4,
  quantizedPerChannel = 5, // scales, zero points
};

enum TensorFlag : uint8_t {
  kRequiresGrad = 1,
  kConjugate = 2,
  kNegative = 4,
  kCoalesced = 8,
  kForDevice = 16, // the receiver's device follows the dtype: type, index
  kTicket = 32, // a tensor of bytes, that say where the elements are; only with kForDevice
};

enum class StoragePlacement : uint8_t { inHead = 0, onChannel = 1 };

/// The others consist of their components only.
inline bool hasOwnStorage(TensorKind kind) {
  return kind == TensorKind::strided || kind == TensorKind::quantizedPerTensor ||
      kind == TensorKind::quantizedPerChannel;
}

} // namespace torchwire
