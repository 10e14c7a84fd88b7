#include "backend/agent/quiet_store.h"

#include <torch/csrc/distributed/c10d/logging.h>

#include "backend/base/library_slots.h"

namespace torchwire {
namespace {

thread_local int quietScopes = 0;

/// What libtorch asks before it writes of anything in c10d.
bool isWanted(c10d::detail::LogLevel level) noexcept {
  return quietScopes == 0 && c10d::detail::isLogLevelEnabled(level);
}

} // namespace

void QuietStore::install() {
  [[maybe_unused]] static const auto replaced = replaceSlots(
      {{"_ZN4c10d6detail17isLogLevelEnabledENS0_8LogLevelE",
        reinterpret_cast<const void*>(&c10d::detail::isLogLevelEnabled),
        reinterpret_cast<void*>(&isWanted)}},
      [](const LoadedImage& image) { return image.file().starts_with("libtorch_cpu"); });
}

QuietStore::QuietStore() {
  ++quietScopes;
}

QuietStore::~QuietStore() {
  --quietScopes;
}

} // namespace torchwire
