#include "backend/codec/tensor_codec.h"

#include <ATen/core/grad_mode.h>

#include "backend/codec/tensor_reader.h"
#include "backend/codec/tensor_writer.h"

namespace torchwire {

std::shared_ptr<void> encodeTensors(const std::vector<at::Tensor>& tensors, OutgoingFrame& frame) {
  return TensorWriter(frame).write(tensors);
}

std::vector<at::Tensor> decodeTensors(ByteReader& in, std::vector<Blob>& blobs) {
  const at::NoGradGuard noGrad;
  return TensorReader(in, blobs).read();
}

} // namespace torchwire
