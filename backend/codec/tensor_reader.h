// A tensor table to tensors. What it reads comes from outside: it checks all of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/base/bytes.h"
#include "backend/codec/decoded_tensors.h"
#include "backend/wire/frame.h"
#include "backend/wire/tensor_table.h"

namespace torchwire {

/// Reads one table: the descriptions first, then the storages, and only then can it build the tensors.
/// For one call of read(). Not thread-safe.
class TensorReader {
 public:
  TensorReader(ByteReader& in, std::vector<Blob>& blobs) : in_(in), blobs_(blobs) {}

  /// As decodeTensors (tensor_codec.h); autograd must be off.
  DecodedTensors read();

 private:
  struct Description {
    TensorKind kind = TensorKind::undefined;
    uint8_t flags = 0;
    c10::Device device = c10::kCPU;
    at::ScalarType dtype{};
    at::Layout layout = at::kStrided;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    uint32_t storage = 0;
    uint64_t offset = 0; // bytes, in the sender's storage
    double scale = 0;
    int64_t zeroPointOrAxis = 0;
    std::vector<Description> components;
  };
  struct Received {
    c10::Storage storage;
    uint64_t begin; // which byte of the sender's storage comes first
  };

  std::vector<int64_t> readNumbers();
  Description readDescription();
  /// The rest of one whose kind has been read.
  Description readDescription(TensorKind kind);
  TensorKind readKind();
  c10::Device readDevice();
  void readKindFields(Description& d);
  void readComponents(Description& d);
  static void checkShape(const Description& d);
  void readStorages();

  at::Tensor build(const Description& d);
  at::Tensor buildOnStorage(const Description& d);
  /// From the first to the last element; SIZE_MAX where it is more than that.
  static uint64_t elementsSpanned(const Description& d);
  /// The storage and the tensor's offset in it, in elements; throws unless the tensor lies within.
  std::pair<c10::Storage, int64_t> placeInStorage(const Description& d);

  ByteReader& in_;
  std::vector<Blob>& blobs_;
  std::vector<Received> storages_;
};

} // namespace torchwire
