#include "rref/context_end.h"

#include <mutex>

#include "rref/private_members.h"

namespace torchwire {

void endDeletesOfRRefs() {
  auto& context = libtorch::RRefContext::getInstance();
  const std::lock_guard lock(context.*pointerTo(RRefsDestroyedLock()));
  context.*pointerTo(RRefsDestroyed()) = true;
}

} // namespace torchwire
