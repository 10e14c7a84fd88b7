#include "cuda/transfer/trial_bytes.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "backend/base/bytes.h"
#include "backend/base/random.h"

namespace torchwire::cuda {
namespace {

constexpr size_t kNumbers = 512; // of 8 bytes

} // namespace

std::vector<char> randomBytes() {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  for (size_t i = 0; i < kNumbers; ++i) {
    out.number(randomNumber());
  }
  return bytes;
}

at::Tensor tensorOf(const std::vector<char>& bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::vector<char> bytesOf(const at::Tensor& tensor) {
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  return {data, data + tensor.numel()};
}

} // namespace torchwire::cuda
