// What all workers of a run share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "test/simulation/event_queue.h"
#include "test/simulation/network.h"
#include "test/simulation/oracle.h"
#include "test/simulation/plan.h"
#include "test/unit/support/memory_store.h"

namespace torchwire::simulation {

/// Not thread-safe.
struct World {
  explicit World(const Settings& s)
      : settings(s), network(queue, s.seed, s.slots), oracle(queue, settings) {}

  const Settings settings;
  EventQueue queue;
  Network network;
  MemoryStore store;
  Oracle oracle;
  std::function<void(const std::string&)> trace; // unset: nobody reads it

  void note(const std::function<std::string()>& line) const {
    if (trace) {
      const auto now =
          std::chrono::duration_cast<std::chrono::microseconds>(queue.now().time_since_epoch());
      trace(std::to_string(now.count()) + " us: " + line());
    }
  }
};

} // namespace torchwire::simulation
