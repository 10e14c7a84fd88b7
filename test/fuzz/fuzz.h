// What the fuzz targets have in common.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <cstdio>
#include <cstdlib>

namespace torchwire {

/// What a target does is told by the fuzzer's bytes: a target takes decisions, sizes and contents off them.
using Script = FuzzedDataProvider;

/// What must hold whatever the bytes are. libFuzzer takes the end of the process for a finding.
inline void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
  }
}

} // namespace torchwire
