#include "backend/faults/fault_layer.h"

#include <utility>

#include "backend/faults/faulty_context.h"
#include "backend/faults/faulty_link.h"
#include "backend/faults/injector.h"

// aroundChannel is elsewhere: all else needs no TensorPipe.

namespace torchwire::faults {

FaultLayer::FaultLayer(std::string self, Plan plan, std::shared_ptr<FaultLog> log)
    : injector_(std::make_shared<Injector>(std::move(self), std::move(plan), std::move(log))) {}

FaultLayer::~FaultLayer() = default;

void FaultLayer::setPlan(Plan plan) {
  injector_->setPlan(std::move(plan));
}

std::unique_ptr<LinkContext> FaultLayer::around(std::unique_ptr<LinkContext> links, Timer& timer) {
  return std::make_unique<FaultyContext>(std::move(links), injector_, timer);
}

std::shared_ptr<Link> FaultLayer::aroundSelf(std::shared_ptr<Link> link, Timer& timer) {
  return FaultyLink::around(std::move(link), injector_, timer, injector_->self());
}

} // namespace torchwire::faults
