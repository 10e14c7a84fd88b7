// Faults on the links of a worker. Nothing of this folder is in a release build.
#pragma once

#include <memory>
#include <string>

#include "backend/faults/fault_log.h"
#include "backend/faults/plan.h"
#include "backend/link/link_interceptor.h"

namespace torchwire::faults {

class Injector;
class MidTensor;

/// Wraps all links of one worker and injects what its plan says. Thread-safe.
class FaultInterceptor final : public LinkInterceptor {
 public:
  /// For the worker `self`. `log` outlives the interceptor's last link. The plan takes effect at once.
  FaultInterceptor(std::string self, Plan plan, std::shared_ptr<FaultLog> log);
  ~FaultInterceptor() override;

  /// Replaces the plan, for all that has not been injected yet. Counts begin anew; a partition ends, and what it
  /// held goes on. What an earlier plan delayed stays delayed.
  void setPlan(Plan plan);

  uint32_t linkOption() const override {
    return link_options::kFaultInjection;
  }
  std::unique_ptr<LinkContext> wrap(std::unique_ptr<LinkContext> links, Timer& timer) override;
  std::shared_ptr<Link> wrapLoopback(std::shared_ptr<Link> link, Timer& timer) override;

  /// Faults that wait for a tensor to be under way, for makeFaultyChannel().
  std::shared_ptr<MidTensor> midTensor() const;

 private:
  const std::shared_ptr<Injector> injector_; // with the links
};

} // namespace torchwire::faults
