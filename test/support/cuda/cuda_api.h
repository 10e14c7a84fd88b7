// CUDA's declarations. What a file here defines of them is what the library exports; all else in it is hidden.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

#define TORCHWIRE_EXPORT extern "C" __attribute__((visibility("default")))
