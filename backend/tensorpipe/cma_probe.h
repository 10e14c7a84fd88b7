// Why TensorPipe's channel `cma` does not work here: it says only that it does not.
#pragma once

#include <string>

#include "backend/tensorpipe/choice.h"

namespace torchwire {

/// What of this process and its kernel keeps others from reading its memory. `yama` is the file with Yama's ptrace_scope.
Objection whyNoCma(const std::string& yama = "/proc/sys/kernel/yama/ptrace_scope");

} // namespace torchwire
