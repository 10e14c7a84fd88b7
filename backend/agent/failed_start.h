// Workers that fail before they are in the group: those that wait for them are told.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <string>

#include "backend/base/thread_pool.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// What a worker of this process tells the group of itself before it knows its links and its devices.
WorkerRecord ownRecord(std::string name, WorkerId id);

/// The sentence for the others; `reason` is an error's text, of which PyTorch's goes on with a stack.
std::string describeFailedStart(const WorkerRecord& worker, const std::string& reason);

/// Has those that wait in the store for the worker that this process begins to start see its end, should that come before the
/// worker is on their list. Does nothing where the store does not answer soon. May throw Interrupted. `thread`: see
/// BoundedStore.
void announceStart(
    const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, WorkerId id,
    uint32_t worldSize, std::shared_ptr<ThreadPool> thread);

/// Has those that wait in the store for a worker of this process throw such a sentence, where there is no agent that could
/// tell them. Does nothing where the store does not answer soon. May throw Interrupted.
void tellOfFailedStart(
    const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, WorkerId id,
    uint32_t worldSize, const std::string& reason, std::shared_ptr<ThreadPool> thread);

} // namespace torchwire
