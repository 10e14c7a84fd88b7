// Tensors to bytes and back.
//
// A tensor table is: the tensors' descriptions, one after another, then the storages that they refer
// to. A storage's bytes follow in place where it is small; a large one is a segment of its own that the
// link's tensor channel carries. docs/protocol.md has the fields.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "backend/codec/decoded_tensors.h"
#include "backend/wire/frame.h"

namespace torchwire {

/// Appends the table of `tensors` to the frame's head and its large storages to the frame's tensors.
/// Returns what must stay alive until the frame is sent. `targets`: on the receiver.
///
/// Only what the tensors view of their storages is sent; tensors that share a storage share it on the
/// other side too, unless so little of it is viewed that copies are cheaper. Any dtype; strided, sparse
/// (COO, CSR, CSC, BSR, BSC) and quantized layouts, but not those that pack several elements into a byte (quint4x2,
/// quint2x4); conjugate and negative bits; requires_grad.
/// Throws c10::Error that names the tensor's position and what cannot be sent.
std::shared_ptr<void> encodeTensors(
    const std::vector<at::Tensor>& tensors, OutgoingFrame& frame,
    const TensorTargets& targets = {});

/// Reads a table. The tensors own fresh memory or share the blobs'. Throws FormatError.
DecodedTensors decodeTensors(ByteReader& in, std::vector<Blob>& blobs);

} // namespace torchwire
