// What the program is told of the other workers.
#pragma once

#include <functional>

#include "backend/base/error.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Called without locks, on threads that may block, one after another for one worker. They must not throw.
struct WorkerEvents {
  /// It has died, or left a dynamic group, and nothing of it is left here. `error` as calls to it fail with.
  std::function<void(const WorkerRecord& worker, const Error& error)> lost = [](const WorkerRecord&,
                                                                                const Error&) {};
  /// It has joined a dynamic group after this one, and can be called.
  std::function<void(const WorkerRecord& worker)> joined = [](const WorkerRecord&) {};
};

} // namespace torchwire
