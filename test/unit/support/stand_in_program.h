// Autograd graphs without autograd: numbers for tensors, over several workers.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "autograd/pass/local_graph.h"

namespace torchwire {

/// A function of a graph: multiplies the sum of its gradients and passes it on.
struct StandInFunction {
  int64_t factor = 1;
  std::vector<size_t> next; // functions of the same worker
  bool leaf = false;
  bool raises = false;
  std::optional<RemoteSend> remote; // a recv function, and the send function at its other end
};

/// What one worker has of a program's graph.
struct StandInPart {
  std::vector<StandInFunction> functions;
  std::map<int64_t, size_t> sends; // by message id
  std::vector<size_t> roots;

  size_t add(StandInFunction function) {
    functions.push_back(std::move(function));
    return functions.size() - 1;
  }
};

/// The graph of one autograd context. The roots are on worker 0.
class StandInProgram {
 public:
  explicit StandInProgram(WorkerId workers) : parts(static_cast<size_t>(workers)) {}

  /// A program of random calls and operations, some of whose results are never used.
  static StandInProgram random(unsigned seed, WorkerId workers);

  /// Sends what function `index` of worker `from` computes; returns its recv function on worker `to`.
  size_t send(WorkerId from, size_t index, WorkerId to);

  StandInPart& part(WorkerId worker) {
    return parts[static_cast<size_t>(worker)];
  }
  const StandInPart& part(WorkerId worker) const {
    return parts[static_cast<size_t>(worker)];
  }

  /// What one process would compute: the gradient of each leaf that the roots reach, by worker and function.
  using Gradients = std::map<std::pair<WorkerId, size_t>, int64_t>;
  Gradients gradients() const;

  /// Do the roots reach all send functions of the workers that they reach?
  bool usesAll() const;

  std::vector<StandInPart> parts;

 private:
  int64_t nextMessage_ = 100;
};

} // namespace torchwire
