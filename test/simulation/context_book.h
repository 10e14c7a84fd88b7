// The autograd contexts of one simulated worker: what libtorch's container and torchwire's Container are in the product.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "autograd/pass/context_registry.h"
#include "test/simulation/sender.h"

namespace torchwire::simulation {

/// Not thread-safe.
class ContextBook {
 public:
  ContextBook(Sender& sender, WorkerId self, ContextId first);

  // ---- what the program does; false: there is nothing of the kind
  void open();
  bool call(uint64_t choice, WorkerId to, WorkerId then);
  bool close(uint64_t choice);
  void closeAll();

  // ---- requests
  /// A call in a context comes; what is returned is called when it has been answered.
  std::function<void()> begin(WorkerId caller, ContextId id);
  /// A call goes out in a context, and what is returned is called when it is over.
  Sender::Done send(ContextId id, WorkerId to);
  void serveRelease(WorkerId from, ContextId id, const ContextRegistry::Done& answer);

  void peerGone(WorkerId peer);
  /// Returns what is to be done elsewhere.
  [[nodiscard]] std::function<void()> peerJoined(WorkerId peer);

  /// Those that are there.
  const std::map<ContextId, std::set<WorkerId>>& contexts() const {
    return contexts_;
  }
  /// Which contexts could not be released on which workers, in all that was tried.
  const std::set<std::pair<ContextId, WorkerId>>& unreached() const {
    return unreached_;
  }

 private:
  ContextRegistry::Outside outside();
  void tell(WorkerId worker, ContextId id, const ContextRegistry::Told& told);
  void tellAgain(WorkerId worker, ContextId id, int tries, Duration pause);

  Sender& sender_;
  const WorkerId self_;
  ContextId next_;
  std::vector<ContextId> opened_; // by the program
  std::map<ContextId, std::set<WorkerId>> contexts_; // with whom calls were exchanged
  std::set<std::pair<ContextId, WorkerId>> unreached_;
  std::shared_ptr<ContextRegistry> registry_;
};

} // namespace torchwire::simulation
