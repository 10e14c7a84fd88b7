// Tensor tables that other workers send.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "backend/codec/tensor_codec.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

constexpr size_t kMaxBlob = 256;

void checkBounds(const at::Tensor& t) {
  if (!t.defined()) {
    return;
  }
  if (t.layout() == at::kSparse) {
    checkBounds(t._indices());
    checkBounds(t._values());
    return;
  }
  if (t.layout() != at::kStrided) {
    checkBounds(t.values());
    return;
  }
  unsigned __int128 last = static_cast<uint64_t>(t.storage_offset());
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) == 0) {
      return;
    }
    last += static_cast<unsigned __int128>(t.size(d) - 1) * static_cast<uint64_t>(t.stride(d));
  }
  require((last + 1) * t.element_size() <= t.storage().nbytes(), "a tensor is within its storage");
}

void run(Script script) {
  std::vector<Blob> blobs;
  for (int n = script.ConsumeIntegralInRange(0, 2); n > 0; --n) {
    blobs.push_back(allocateBlob(script.ConsumeIntegralInRange<size_t>(0, kMaxBlob)));
  }
  const std::vector<char> table = script.ConsumeRemainingBytes<char>();
  ByteReader in(table);
  try {
    for (const at::Tensor& t : decodeTensors(in, blobs).tensors) {
      checkBounds(t);
    }
  } catch (const std::exception&) { // FormatError, or c10::Error for what does not fit together
  }
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::run(torchwire::Script(data, size));
  return 0;
}
