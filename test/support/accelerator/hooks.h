// What libtorch asks an accelerator for beside its guard: pinned memory above all.
#pragma once

namespace torchwire::accelerator {

/// Registers the hooks and the allocators. Once, when the module is imported.
void registerHooks();

} // namespace torchwire::accelerator
