// Tensors to encode, and what tells whether they came back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backend/wire/frame.h"

namespace torchwire {

/// All dtypes that a plain tensor on the CPU can have.
std::vector<at::ScalarType> plainDtypes();

/// One dimension of arbitrary bytes (zeros and ones where the dtype is bool).
at::Tensor randomBytes(at::ScalarType dtype, int64_t elements, std::mt19937& random);

/// Two thirds zeros, the rest numbers that tell where they stand.
at::Tensor mostlyZeros(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat);

/// Of any kind that can be sent: any dtype, layout, view and flags.
at::Tensor randomTensor(std::mt19937& random);

/// Two tensors of any sort that are views of one storage, or of none.
std::vector<at::Tensor> randomRelatives(std::mt19937& random);

/// Through a frame and back. Throws where encoding or decoding does, and if a table leaves bytes behind.
std::vector<at::Tensor> throughFrame(const std::vector<at::Tensor>& tensors);
at::Tensor throughFrame(const at::Tensor& tensor);

/// How the tensors differ, in words, or nothing. All counts that a program can see: kind, dtype, shape, strides, bits,
/// requires_grad, and each element's bytes.
std::string difference(const at::Tensor& sent, const at::Tensor& received);
/// The same, except that strides may differ: of a tensor that was sent as a copy.
std::string differenceButStrides(const at::Tensor& sent, const at::Tensor& received);

} // namespace torchwire
