// The autograd part of the extension module.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "backend/agent/agent.h"

namespace torchwire {

using AgentClass =
    pybind11::class_<Agent, torch::distributed::rpc::RpcAgent, std::shared_ptr<Agent>>;

/// Adds what torchwire.distributed_autograd needs. Keeps the GIL.
void bindAutograd(pybind11::module_& module, AgentClass& agent);

} // namespace torchwire
