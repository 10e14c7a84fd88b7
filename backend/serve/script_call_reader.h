// Calls of builtin operators and TorchScript functions, read from their messages.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/script_call.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "backend/base/annotations.h"

namespace torchwire {

/// Reads as libtorch's ScriptCall::fromMessage does, and remembers which operator a schema names: libtorch parses the
/// schema and writes out those of all the operator's overloads to find it, which takes longer than most operators run.
/// Thread-safe.
class ScriptCallReader {
 public:
  using ScriptCall = torch::distributed::rpc::ScriptCall;

  /// Throws what libtorch throws where the message makes no sense, or names an operator that is not there.
  std::unique_ptr<ScriptCall> read(const torch::distributed::rpc::Message& message)
      EXCLUDES(mutex_);

 private:
  using Operator = std::shared_ptr<torch::jit::Operator>;

  Operator find(const std::string& schema) const EXCLUDES(mutex_);

  mutable Mutex mutex_{LockRank::operators};
  // By the schema's text; of operators that libtorch has found, so that there are no more than it has.
  std::unordered_map<std::string, Operator> operators_ GUARDED_BY(mutex_);
};

} // namespace torchwire
