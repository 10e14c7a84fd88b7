#include "test/unit/support/stand_in_graph.h"

#include <stdexcept>

namespace torchwire {

StandInGraph::StandInGraph(const StandInPart& part, bool root, Hooks hooks)
    : part_(part), root_(root), hooks_(std::move(hooks)) {
  std::vector<size_t> queue;
  std::set<size_t> seen;
  MutexLock lock(mutex_);
  const auto add = [&](size_t function) {
    ++awaited_[function];
    if (seen.insert(function).second) {
      queue.push_back(function);
    }
  };
  if (root_) {
    for (const size_t function : part_.roots) {
      add(function);
    }
  }
  for (const auto& [message, function] : part_.sends) {
    queue.push_back(function);
  }
  while (!queue.empty()) {
    const size_t function = queue.back();
    queue.pop_back();
    for (const size_t next : part_.functions[function].next) {
      add(next);
    }
  }
}

std::vector<int64_t> StandInGraph::sends() const {
  std::vector<int64_t> ids;
  for (const auto& [message, function] : part_.sends) {
    ids.push_back(message);
  }
  return ids;
}

void StandInGraph::evaluateRoots() {
  StandInFunction roots;
  roots.next = part_.roots;
  run(passOn(roots, 1));
}

void StandInGraph::evaluate(int64_t send, const Attach& attach) {
  attach();
  int64_t gradient = 0;
  {
    MutexLock lock(mutex_);
    gradient = gradients_.at(send);
  }
  run({{part_.sends.at(send), gradient}});
}

void StandInGraph::setGradient(int64_t send, int64_t gradient) {
  MutexLock lock(mutex_);
  gradients_[send] = gradient;
}

void StandInGraph::run(std::vector<Ready> ready) {
  while (!ready.empty() && !stopped_.load()) {
    const Ready task = ready.back();
    ready.pop_back();
    const StandInFunction& function = part_.functions[task.function];
    if (function.raises) {
      raise(task.function);
      return;
    }
    if (function.leaf) {
      hooks_.accumulate(task.function, task.gradient);
    } else if (function.remote) {
      hooks_.send(*function.remote, task.gradient * function.factor);
    }
    for (const Ready& more : passOn(function, task.gradient)) {
      ready.push_back(more);
    }
  }
}

std::vector<StandInGraph::Ready> StandInGraph::passOn(
    const StandInFunction& function, int64_t gradient) {
  std::vector<Ready> ready;
  MutexLock lock(mutex_);
  for (const size_t next : function.next) {
    buffers_[next] += gradient * function.factor;
    if (--awaited_.at(next) == 0) {
      ready.push_back({next, buffers_[next]});
      buffers_.erase(next);
    }
  }
  return ready;
}

void StandInGraph::drop(const std::vector<int64_t>& sends) {
  std::vector<Ready> ready;
  {
    MutexLock lock(mutex_);
    std::vector<size_t> dead;
    for (const int64_t send : sends) {
      dead.push_back(part_.sends.at(send));
    }
    while (!dead.empty()) {
      const size_t function = dead.back();
      dead.pop_back();
      for (const size_t next : part_.functions[function].next) {
        if (--awaited_.at(next) > 0) {
          continue;
        }
        const auto buffered = buffers_.find(next);
        if (buffered == buffers_.end()) {
          dead.push_back(next);
        } else {
          ready.push_back({next, buffered->second});
          buffers_.erase(buffered);
        }
      }
    }
  }
  run(std::move(ready));
}

void StandInGraph::raise(size_t function) {
  MutexLock lock(mutex_);
  if (!error_) {
    error_ = "function " + std::to_string(function) + " raised";
  }
}

std::optional<std::string> StandInGraph::error() {
  MutexLock lock(mutex_);
  return error_;
}

std::string StandInGraph::functionBehind(int64_t send) const {
  return "Function" + std::to_string(part_.functions[part_.sends.at(send)].next.front());
}

void StandInGraph::close() {
  if (closed_.exchange(true)) {
    throw std::logic_error("a graph was closed twice");
  }
  hooks_.closed();
}

std::vector<RemoteSend> StandInGraph::walkRoots(GraphWalk& walk) {
  return static_cast<StandInWalk&>(walk).fromFunctions(part_.roots);
}

std::vector<RemoteSend> StandInWalk::from(const std::vector<int64_t>& sends) {
  std::vector<size_t> functions;
  for (const int64_t send : sends) {
    functions.push_back(part_.sends.at(send));
  }
  return fromFunctions(std::move(functions));
}

std::vector<RemoteSend> StandInWalk::fromFunctions(std::vector<size_t> functions) {
  std::vector<RemoteSend> found;
  while (!functions.empty()) {
    const size_t function = functions.back();
    functions.pop_back();
    if (!seen_.insert(function).second) {
      continue;
    }
    if (part_.functions[function].remote) {
      found.push_back(*part_.functions[function].remote);
    }
    for (const size_t next : part_.functions[function].next) {
      functions.push_back(next);
    }
  }
  return found;
}

} // namespace torchwire
