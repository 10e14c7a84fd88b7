// What CUDA's headers ask for from nvcc's, which are in another wheel. Found only where that is not installed.
#pragma once

#define __host__
#define __device__
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __cudart_builtin__
#define __location__(annotation)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define CUDARTAPI
#define CUDARTAPI_CDECL
