// Leaves a synchronization out, so that tests can show that another test would notice. In builds with fault injection only:
// in others nothing of it is compiled.
#pragma once

#if __has_include("build_features.h")
#include "build_features.h"
#endif

#ifdef TORCHWIRE_FAULT_INJECTION
#include <cstdlib>
#include <string>
#endif

namespace torchwire::cuda {

/// The synchronizations that tests leave out, by name.
enum class Synchronization {
  blockBehindFilling, // a receiver's copy from a block behind the sender's into it
  blockFilled, // the event that stands for the latter
  blocksDoneAfterCopy, // a block given back only once it has been read
  defaultBehindRequest, // the program, behind what a request has left
  defaultsBehindPass, // the program, behind a pass's gradients
  futureStorages, // who waits for a future, behind what fills its value
  gradientsBehindFilling, // an autograd function, behind what fills its gradients
  gradientsLent, // which live until it has read them
  hostWaitsForCopies, // a frame is made once its bytes have come
  keptBehindFilling, // who gets a tensor of the same process, behind what fills it
  keptLent, // which lives until that has read it
  laneBehindFilling, // a send by NCCL, behind what fills the copy
  laneKeptLent, // the copy, which lives until it has been sent
  passGradientsLent, // gradients live until the program has read them
  requestBehindDefault, // a request, behind what the program and other requests have left
};

#ifdef TORCHWIRE_FAULT_INJECTION
/// Whether TORCHWIRE_TEST_LEAVE_OUT names it.
inline bool isLeftOut(const char* name) {
  static const char* const leftOut =
      std::getenv("TORCHWIRE_TEST_LEAVE_OUT"); // NOLINT(concurrency-mt-unsafe)
  return leftOut != nullptr && std::string(name) == leftOut;
}
#else
constexpr bool isLeftOut(const char* /* name */) {
  return false;
}
#endif

} // namespace torchwire::cuda

/// Makes a synchronization, as TORCHWIRE_SYNCHRONIZE(blockFilled, event.record(stream)).
#define TORCHWIRE_SYNCHRONIZE(name, statement)                                    \
  do {                                                                            \
    static_assert(static_cast<int>(torchwire::cuda::Synchronization::name) >= 0); \
    if (!torchwire::cuda::isLeftOut(#name)) {                                     \
      statement;                                                                  \
    }                                                                             \
  } while (false)
