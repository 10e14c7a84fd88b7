// What a worker answers to those who are no members (wire/observation.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/base/thread_pool.h"
#include "backend/wire/observation.h"

namespace torchwire {

/// `answer` is AgentOptions::answer. It is called on the pool's threads, where it may wait for Python's lock; until the
/// pool is joined, whatever becomes of the agent.
AskForObserver answersForObservers(
    std::shared_ptr<ThreadPool> threads, std::function<std::string(const std::string&)> answer);

} // namespace torchwire
