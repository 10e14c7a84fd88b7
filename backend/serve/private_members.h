// The private members of libtorch's futures that are used here, and why.
#pragma once

#include <ATen/core/ivalue.h>

#include "backend/base/private_member.h"

namespace torchwire {

// Whether anybody but who waits is to hear of a future's end.
struct FutureCallbacks {
  friend auto pointerTo(FutureCallbacks);
};
template struct PrivateMember<FutureCallbacks, &c10::ivalue::Future::callbacks_>;

// To wait for a future for a while only. A callback would tell too late: it comes after those of the program, which may
// wait for a lock that the waiting thread holds.
struct FutureFinished {
  friend auto pointerTo(FutureFinished);
};
template struct PrivateMember<FutureFinished, &c10::ivalue::Future::finished_cv_>;

// Guards both.
struct FutureMutex {
  friend auto pointerTo(FutureMutex);
};
template struct PrivateMember<FutureMutex, &c10::ivalue::Future::mutex_>;

} // namespace torchwire
