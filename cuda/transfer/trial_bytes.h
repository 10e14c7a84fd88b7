// Bytes that no memory has by chance, for trials of paths.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torchwire::cuda {

std::vector<char> randomBytes();

/// As a tensor on the CPU, and back.
at::Tensor tensorOf(const std::vector<char>& bytes);
std::vector<char> bytesOf(const at::Tensor& tensor);

} // namespace torchwire::cuda
