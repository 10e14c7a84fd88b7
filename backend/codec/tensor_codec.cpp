#include "backend/codec/tensor_codec.h"

#include <ATen/core/grad_mode.h>

#include <cstdlib>
#include <string>

#include "backend/base/log.h"
#include "backend/codec/tensor_reader.h"
#include "backend/codec/tensor_writer.h"

namespace torchwire {
namespace {

constexpr size_t kDefaultInlineLimit = 256 * 1024;

} // namespace

size_t inlineLimit() {
  static const size_t limit = [] {
    const char* text = std::getenv("TORCHWIRE_INLINE_LIMIT");
    if (text == nullptr) {
      return kDefaultInlineLimit;
    }
    const bool number = *text != '\0' && std::string(text).find_first_not_of("0123456789") == std::string::npos;
    if (!number) {
      log(LogLevel::warning,
          std::string("TORCHWIRE_INLINE_LIMIT is '") + text + "' and ignored: it is a number of bytes");
      return kDefaultInlineLimit;
    }
    return static_cast<size_t>(std::strtoull(text, nullptr, 10));
  }();
  return limit;
}

std::shared_ptr<void> encodeTensors(const std::vector<at::Tensor>& tensors, OutgoingFrame& frame) {
  return TensorWriter(frame).write(tensors);
}

std::vector<at::Tensor> decodeTensors(ByteReader& in, std::vector<Blob>& blobs) {
  const at::NoGradGuard noGrad;
  return TensorReader(in, blobs).read();
}

} // namespace torchwire
