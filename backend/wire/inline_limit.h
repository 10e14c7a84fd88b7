// Where a payload or a tensor stops being small.
#pragma once

#include <cstddef>

namespace torchwire {

/// Storages and payloads from this size on, in bytes, travel on the link's tensor channel instead of in the frame's
/// head. TORCHWIRE_INLINE_LIMIT in the environment replaces it, for measurements.
/// Measured: docs/decisions.md, "Where a tensor stops being small". Thread-safe.
size_t inlineLimit();

} // namespace torchwire
