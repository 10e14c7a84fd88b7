// The part of torchwire that is compiled against CUDA.
#pragma once

#include <string>
#include <variant>

namespace torchwire::cuda {

/// An entry point of CUDA's part, which the first call loads, or why there is none. CUDA's part is a library of its own,
/// beside this one: it needs CUDA's libraries, which not every torch has, and which a worker without CUDA tensors has no
/// use for. Thread-safe.
std::variant<void*, std::string> cudaEntryPoint(const char* name);

} // namespace torchwire::cuda
