// The order in which a thread may take locks.
//
// A thread that holds a lock takes only locks that stand further down in the table; where it takes another, two
// threads can wait for each other for ever. The GIL stands before them all: it is never taken under a lock. libtorch's
// locks stand in the middle: above them what calls into libtorch under its own lock, below them what a send needs,
// since whoever sends may hold any of them. Locks of which none is ever taken under another stand in any order.
#pragma once

#include "backend/base/thread_checks.h"

namespace torchwire {

// clang-format off
#define TORCHWIRE_LOCK_RANKS(X)                                                                       \
  /* Call into libtorch while they are held. */                                                       \
  X(contextRegistry)   /* ContextRegistry: takes contexts out of libtorch's container */              \
  X(forkLedger)        /* ForkLedger: changes libtorch's table of forks */                            \
  X(passTable)         /* PassTable: asks libtorch whether a context is open */                       \
  X(passContext)       /* PassTable::Context: makes graph tasks, looks into the discovery */          \
  X(discovery)         /* Discovery: walks through libtorch's graph */                                \
  /* libtorch's. */                                                                                   \
  X(autogradContainer) /* a shard of DistAutogradContainer */                                         \
  X(distEngine)        /* DistEngine: the contexts in which a pass runs */                            \
  X(autogradContext)   /* DistAutogradContext: send and recv functions, gradients */                  \
  X(graphTask)         /* libtorch's GraphTask: dependencies and buffers of a pass */                 \
  X(rrefContext)       /* RRefContext: owners, users and forks */                                     \
  /* May be taken under libtorch's, which a send may hold. */                                         \
  X(pass)              /* Pass: what waits and is active; looks names of workers up */                \
  X(rootPass)          /* RootPass: how the pass ends */                                              \
  X(passError)         /* GraphTask: the first error of a pass */                                     \
  X(responseAggregator) /* ResponseAggregator: answers that have come */                              \
  X(contextRound)      /* ContextRegistry::Round: who has been told of a release */                   \
  X(rrefMetadata)      /* RRefMetadata: ages and creation sites */                                    \
  X(passedForks)       /* PassedForks: to whom forks have gone */                                     \
  X(orphanedRRefs)     /* OrphanedRRefs: those whose owner has died */                                \
  X(introduction)      /* Agent: links that are made at the start */                                  \
  X(dialResult)        /* ShutdownMonitor::DialResult: the last dial's error */                       \
  X(provenStore)       /* ProvenStore: the key, and what has been seen */                             \
  X(peerStores)        /* PeerStores: the place, and the store that is served here */                  \
  X(workerDirectory)   /* WorkerDirectory: names and ranks */                                         \
  X(groupDevices)      /* GroupDevices: what workers say of their devices */                          \
  X(devicePaths)       /* DevicePaths: which have been tried */                                       \
  X(keptTensors)       /* KeptTensors: tensors of this worker to itself */                            \
  X(lentBlocks)        /* LentBlocks: memory of devices that peers copy from */                       \
  X(ipcTransfers)      /* Transfers: makes its IpcTransfers and NcclTransfers */                      \
  X(ncclTransfers)     /* NcclTransfers: its lanes */                                                 \
  X(ncclLane)          /* LaneEnd: gives operations to NCCL, one after another */                     \
  X(ncclKept)          /* SendingLane: tensors that the receiver has not asked for */                 \
  X(ncclLaneError)     /* LaneEnd: why it has failed */                                               \
  X(borrowedBlocks)    /* BorrowedBlocks: peers' memory that is open */                               \
  X(operators)         /* ScriptCallReader: which operator a schema names */                          \
  X(cancelledCalls)    /* CancelledCalls: requests whose callers have given them up */                 \
  X(cancellation)      /* Cancellation: callbacks of one of them */                                    \
  X(duplicates)        /* DuplicateFilter: the latest requests of our own */                          \
  X(activeCalls)       /* ActiveCalls: two counters */                                                \
  X(functionTable)     /* FunctionTable: names */                                                     \
  X(servedCalls)       /* ServedCalls: requests that have not been answered */                        \
  X(traceLog)          /* TraceLog: what has been traced */                                           \
  X(linkManager)       /* LinkManager: peers, their links and queues */                               \
  X(callTable)         /* CallTable: pending calls; sets a timer */                                   \
  X(sendWindow)        /* SendWindow: requests under way, and those that wait */                      \
  X(threadPool)        /* ThreadPool: threads and tasks */                                            \
  X(faultyLinks)       /* FaultyContext: its links */                                                 \
  X(faultyLink)        /* FaultyLink: frames that a fault holds */                                    \
  X(sentTwice)         /* a frame that a fault has doubled: who has sent it */                        \
  X(faultyChannel)     /* FaultyChannel: tensors that a fault holds */                                \
  X(injector)          /* Injector: the plan and its counts */                                        \
  X(midTensor)         /* MidTensor: faults that wait for their tensor */                             \
  X(requestNotes)      /* RequestNotes: requests that may be answered by a fault */                   \
  X(faultLog)          /* FaultLog: what has been injected */                                         \
  X(faultProcess)      /* Process: a pause of the whole process */                                    \
  X(loopback)          /* LoopbackLink: frames of this worker to itself */                            \
  X(tensorPipeContext) /* TensorPipeContext: the current listener */                                  \
  X(transportContext)  /* TransportContext: its accept queues */                                      \
  X(sealedPeers)       /* SealedPeers: with whom connections are sealed, and how */                   \
  X(keyRing)           /* KeyRing: the keys of the group */                                           \
  X(messageStreams)    /* MessageStreams: those that are open */                                      \
  X(messageStream)     /* MessageStream: reads and writes; posts to the loop, writes to its stream */ \
  X(testStream)        /* a stream of tests: posts to the loop */                                     \
  X(bufferPool)        /* BufferPool: what it keeps; sets a timer */                                  \
  X(timer)             /* Timer: tasks; starts its thread */                                          \
  X(processWatch)      /* ProcessWatch: which processes are watched */                                \
  X(loop)              /* Loop: posted tasks */                                                       \
  X(loopStandby)       /* Loop: whether the thread that stands by looks at the clock */               \
  X(testOuter)         /* a test's: looks into others of its own */                                   \
  X(test)              /* a test's: what it counts */                                                \
  X(lineWriter)        /* LineWriter: lines of the log, which may be written under any */
// clang-format on

#define TORCHWIRE_LOCK_RANK(name) name,
enum class LockRank : unsigned char { TORCHWIRE_LOCK_RANKS(TORCHWIRE_LOCK_RANK) };
#undef TORCHWIRE_LOCK_RANK

/// The rank's name in the table.
const char* nameOf(LockRank rank);

// What the calling thread holds. Kept only where the checks are on; Mutex and ForeignLock call it.
void pushLock(LockRank rank); // aborts where the rank is not above those that are held
void popLock(LockRank rank);

/// Where the checks are on, aborts if the calling thread holds a lock. `action` as of expectFree().
void checkUnlocked(const char* action);
inline void expectUnlocked(const char* action) {
  if (kThreadChecks) [[unlikely]] {
    checkUnlocked(action);
  }
}

/// Stands for a lock that is not a Mutex, such as libtorch's, while it is held or may be: put it before the lock itself
/// or before the call that takes it.
class ForeignLock {
 public:
  explicit ForeignLock(LockRank rank) : rank_(rank) {
    if (kThreadChecks) [[unlikely]] {
      pushLock(rank_);
    }
  }
  ~ForeignLock() {
    if (kThreadChecks) [[unlikely]] {
      popLock(rank_);
    }
  }
  ForeignLock(const ForeignLock&) = delete;
  ForeignLock& operator=(const ForeignLock&) = delete;

 private:
  const LockRank rank_;
};

} // namespace torchwire
