// The bindings of the RRef module.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "backend/agent/agent.h"

namespace torchwire {

void bindRRefs(
    pybind11::class_<Agent, torch::distributed::rpc::RpcAgent, std::shared_ptr<Agent>>& agent);

} // namespace torchwire
