#include "backend/faults/fault_interceptor.h"

#include <utility>

#include "backend/faults/faulty_context.h"
#include "backend/faults/faulty_link.h"
#include "backend/faults/injector.h"

namespace torchwire::faults {

FaultInterceptor::FaultInterceptor(std::string self, Plan plan, std::shared_ptr<FaultLog> log)
    : injector_(std::make_shared<Injector>(std::move(self), std::move(plan), std::move(log))) {}

FaultInterceptor::~FaultInterceptor() = default;

void FaultInterceptor::setPlan(Plan plan) {
  injector_->setPlan(std::move(plan));
}

std::unique_ptr<LinkContext> FaultInterceptor::wrap(
    std::unique_ptr<LinkContext> links, Timer& timer) {
  return std::make_unique<FaultyContext>(std::move(links), injector_, timer);
}

std::shared_ptr<Link> FaultInterceptor::wrapLoopback(std::shared_ptr<Link> link, Timer& timer) {
  return FaultyLink::wrap(std::move(link), injector_, timer, injector_->self());
}

std::shared_ptr<MidTensor> FaultInterceptor::midTensor() const {
  return injector_->midTensor();
}

} // namespace torchwire::faults
