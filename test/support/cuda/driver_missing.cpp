// Functions of the driver that PyTorch links to, or asks for at its start, and the stand-in does not have.

// Not with CUDA's headers: whatever their parameters are, these look at none.
#define TORCHWIRE_MISSING(function)                                   \
  extern "C" __attribute__((visibility("default"))) int function() {  \
    constexpr int kNotSupported = 801; /* CUDA_ERROR_NOT_SUPPORTED */ \
    return kNotSupported;                                             \
  }

// Kernels that are compiled at run time.
TORCHWIRE_MISSING(cuFuncGetAttribute)
TORCHWIRE_MISSING(cuFuncSetAttribute)
TORCHWIRE_MISSING(cuFuncSetCacheConfig)
TORCHWIRE_MISSING(cuLaunchCooperativeKernel)
TORCHWIRE_MISSING(cuLaunchKernel)
TORCHWIRE_MISSING(cuLinkAddData_v2)
TORCHWIRE_MISSING(cuLinkComplete)
TORCHWIRE_MISSING(cuLinkCreate_v2)
TORCHWIRE_MISSING(cuModuleGetFunction)
TORCHWIRE_MISSING(cuModuleLoad)
TORCHWIRE_MISSING(cuModuleLoadData)
TORCHWIRE_MISSING(cuModuleLoadDataEx)
TORCHWIRE_MISSING(cuModuleUnload)
TORCHWIRE_MISSING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
TORCHWIRE_MISSING(cuTensorMapEncodeTiled)

// Expandable segments, and memory that several devices map.
TORCHWIRE_MISSING(cuMemAddressFree)
TORCHWIRE_MISSING(cuMemAddressReserve)
TORCHWIRE_MISSING(cuMemCreate)
TORCHWIRE_MISSING(cuMemExportToShareableHandle)
TORCHWIRE_MISSING(cuMemGetAllocationGranularity)
TORCHWIRE_MISSING(cuMemGetAllocationPropertiesFromHandle)
TORCHWIRE_MISSING(cuMemImportFromShareableHandle)
TORCHWIRE_MISSING(cuMemMap)
TORCHWIRE_MISSING(cuMemRelease)
TORCHWIRE_MISSING(cuMemRetainAllocationHandle)
TORCHWIRE_MISSING(cuMemSetAccess)
TORCHWIRE_MISSING(cuMemUnmap)
TORCHWIRE_MISSING(cuMemsetD32Async)
TORCHWIRE_MISSING(cuStreamWriteValue32)
