#include "rref/context_end.h"

#include <mutex>

#include "backend/base/lock_rank.h"
#include "rref/private_members.h"

namespace torchwire {

void endDeletesOfRRefs() {
  auto& context = libtorch::RRefContext::getInstance();
  const ForeignLock rank(LockRank::rrefContext);
  const std::lock_guard lock(context.*pointerTo(RRefsDestroyedLock()));
  context.*pointerTo(RRefsDestroyed()) = true;
}

} // namespace torchwire
