// Faults on the links of a worker. Nothing of this folder is in a release build.
#pragma once

#include <memory>
#include <string>

#include "backend/faults/fault_log.h"
#include "backend/faults/plan.h"
#include "backend/link_layer.h"

namespace torchwire::faults {

class Injector;

/// Stands around all links of one worker and injects what its plan says. Thread-safe.
class FaultLayer final : public LinkLayer {
 public:
  /// For the worker `self`. `log` outlives the layer's last link. The plan takes effect at once.
  FaultLayer(std::string self, Plan plan, std::shared_ptr<FaultLog> log);
  ~FaultLayer() override;

  /// Replaces the plan, for all that has not been struck yet. Counts begin anew; a partition ends, and what it
  /// held goes on. What an earlier plan delayed stays delayed.
  void setPlan(Plan plan);

  uint32_t linkOption() const override {
    return link_options::kFaultInjection;
  }
  std::unique_ptr<LinkContext> around(std::unique_ptr<LinkContext> links, Timer& timer) override;
  std::shared_ptr<Link> aroundSelf(std::shared_ptr<Link> link, Timer& timer) override;
  std::shared_ptr<tensorpipe::channel::Context> aroundChannel(
      std::shared_ptr<tensorpipe::channel::Context> channel, Timer& timer) override;

 private:
  const std::shared_ptr<Injector> injector_; // with the links
};

} // namespace torchwire::faults
