// What the calling thread is doing, as far as it decides on what it may do.
//
//   free        anything
//   sending     inside a link's send, or another call down into TensorPipe. The caller may hold the GIL or any lock of
//               libtorch's, so nothing may be waited for, and no frame that comes in be processed.
//   delivering  in a callback of a link, on a transport's loop, or in a task of the timer. Nothing may block.
//
// Neither of the last two may take the GIL, complete a future, run user code or drop what Python owns.
#pragma once

#include "backend/base/thread_checks.h"

namespace torchwire {

/// Makes the calling thread a sending one while it lives. Nests, also in a DeliverScope.
class SendScope {
 public:
  SendScope();
  ~SendScope();
  SendScope(const SendScope&) = delete;
  SendScope& operator=(const SendScope&) = delete;
};

/// Makes the calling thread a delivering one while it lives. Nests, also in a SendScope: then the thread is both.
class DeliverScope {
 public:
  DeliverScope();
  ~DeliverScope();
  DeliverScope(const DeliverScope&) = delete;
  DeliverScope& operator=(const DeliverScope&) = delete;
};

/// Whether the thread is in a SendScope, however deep. Known whether or not the checks are on.
bool isSending();
/// Whether the thread is in a DeliverScope, however deep.
bool isDelivering();
/// Neither.
inline bool isFree() {
  return !isSending() && !isDelivering();
}

[[noreturn]] void breakRoleRule(const char* action);

/// Where the checks are on, aborts unless the calling thread is free. `action` says what it was about to do, as in
/// "taking the GIL".
inline void expectFree(const char* action) {
  if (kThreadChecks && !isFree()) [[unlikely]] {
    breakRoleRule(action);
  }
}

} // namespace torchwire
