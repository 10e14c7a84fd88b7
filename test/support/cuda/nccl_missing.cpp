// Functions of NCCL's that PyTorch links to and the stand-in does not have.

// Not with NCCL's header: whatever their parameters are, these look at none.
#define TORCHWIRE_MISSING(function)                                  \
  extern "C" __attribute__((visibility("default"))) int function() { \
    constexpr int kInternalError = 3; /* ncclInternalError */        \
    return kInternalError;                                           \
  }

TORCHWIRE_MISSING(ncclAllGather)
TORCHWIRE_MISSING(ncclAllReduce)
TORCHWIRE_MISSING(ncclAlltoAll)
TORCHWIRE_MISSING(ncclBcast)
TORCHWIRE_MISSING(ncclBroadcast)
TORCHWIRE_MISSING(ncclCommCount)
TORCHWIRE_MISSING(ncclCommDeregister)
TORCHWIRE_MISSING(ncclCommDestroy)
TORCHWIRE_MISSING(ncclCommFinalize)
TORCHWIRE_MISSING(ncclCommInitAll)
TORCHWIRE_MISSING(ncclCommInitRank)
TORCHWIRE_MISSING(ncclCommInitRankScalable)
TORCHWIRE_MISSING(ncclCommRegister)
TORCHWIRE_MISSING(ncclCommShrink)
TORCHWIRE_MISSING(ncclCommSplit)
TORCHWIRE_MISSING(ncclCommUserRank)
TORCHWIRE_MISSING(ncclCommWindowDeregister)
TORCHWIRE_MISSING(ncclCommWindowRegister)
TORCHWIRE_MISSING(ncclDevCommCreate)
TORCHWIRE_MISSING(ncclDevCommDestroy)
TORCHWIRE_MISSING(ncclGroupEnd)
TORCHWIRE_MISSING(ncclGroupSimulateEnd)
TORCHWIRE_MISSING(ncclGroupStart)
TORCHWIRE_MISSING(ncclMemAlloc)
TORCHWIRE_MISSING(ncclMemFree)
TORCHWIRE_MISSING(ncclRedOpCreatePreMulSum)
TORCHWIRE_MISSING(ncclRedOpDestroy)
TORCHWIRE_MISSING(ncclReduce)
TORCHWIRE_MISSING(ncclReduceScatter)
