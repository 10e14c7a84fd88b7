// All links of a worker, with a plan's faults.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/timer.h"
#include "backend/faults/injector.h"
#include "backend/link/link.h"

namespace torchwire::faults {

/// Wraps a context, and all its links with it. A dial that is refused does not reach the inner context: TensorPipe
/// would open a connection, and a peer's listener that sees one end before its first message may die of it.
/// Thread-safe.
class FaultyContext final : public LinkContext {
 public:
  FaultyContext(
      std::unique_ptr<LinkContext> inner, std::shared_ptr<Injector> injector, Timer& timer);
  ~FaultyContext() override;

  std::string listen(Accepted accepted) override;
  HostAddress hostAddress() const override {
    return inner_->hostAddress();
  }
  std::shared_ptr<Link> dial(const WorkerRecord& peer) override;
  std::vector<char> offer() const override;
  LinkDescription describe(const std::vector<char>& peersOffer) const override;
  void join() override;

 private:
  class Links; // that are there, to be closed by join()

  const std::unique_ptr<LinkContext> inner_;
  const std::shared_ptr<Injector> injector_;
  const std::shared_ptr<Links> links_; // with the listener
};

} // namespace torchwire::faults
