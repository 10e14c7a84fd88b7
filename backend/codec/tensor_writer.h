// Tensors to a tensor table.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/codec/tensor_targets.h"
#include "backend/wire/frame.h"
#include "backend/wire/tensor_table.h"

namespace torchwire {

/// The bytes of its storage that a strided tensor touches: [begin, end).
struct StorageRange {
  size_t begin = 0;
  size_t end = 0;
  size_t length() const {
    return end - begin;
  }
};

/// Writes one table, in two passes: the first finds which storages are needed, and which part of each;
/// the second writes. For one call of write(). Not thread-safe.
class TensorWriter {
 public:
  explicit TensorWriter(OutgoingFrame& frame) : frame_(frame), out_(frame.head) {}

  /// As encodeTensors (tensor_codec.h).
  std::shared_ptr<void> write(const std::vector<at::Tensor>& tensors, const TensorTargets& targets);

 private:
  struct Shared { // a storage that is sent, and the part of it that is needed
    c10::StorageImpl* storage;
    at::Tensor any; // keeps it alive
    StorageRange range;
    size_t useful;
    size_t item; // the largest element size of the tensors that share it
    bool scattered = false;
  };

  // The first pass.
  void collect(const at::Tensor& t);
  void markScattered();

  // The second pass.
  void describe(const at::Tensor& t, c10::Device device = c10::kCPU, bool isTicket = false);
  void writeKindFields(const at::Tensor& t, TensorKind kind);
  void describeStorage(const at::Tensor& original);
  void writeNumbers(at::IntArrayRef numbers);
  void writeStorages();
  void sendOnChannel(const Shared& shared, const char* data, size_t length);

  Shared* find(const at::Tensor& t);

  OutgoingFrame& frame_;
  ByteWriter out_;
  std::vector<Shared> shared_; // few: a linear search beats a map
  // What keeps the frame's segments alive: the tensors, and copies of memory that PyTorch does not own.
  std::shared_ptr<std::vector<at::Tensor>> kept_ = std::make_shared<std::vector<at::Tensor>>();
};

} // namespace torchwire
