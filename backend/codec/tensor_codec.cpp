#include "backend/codec/tensor_codec.h"

#include <ATen/core/grad_mode.h>

#include "backend/codec/tensor_reader.h"
#include "backend/codec/tensor_writer.h"

namespace torchwire {

std::shared_ptr<void> encodeTensors(
    const std::vector<at::Tensor>& tensors, OutgoingFrame& frame, const TensorTargets& targets) {
  return TensorWriter(frame).write(tensors, targets);
}

DecodedTensors decodeTensors(ByteReader& in, std::vector<Blob>& blobs) {
  const at::NoGradGuard noGrad;
  return TensorReader(in, blobs).read();
}

} // namespace torchwire
