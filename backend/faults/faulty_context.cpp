#include "backend/faults/faulty_context.h"

#include <utility>

#include "backend/faults/fault_errors.h"
#include "backend/faults/faulty_link.h"

namespace torchwire::faults {
namespace {

/// What dialing gives when nobody seems to listen. Thread-safe.
class RefusedLink final : public Link {
 public:
  explicit RefusedLink(Error error) : error_(std::move(error)) {}

  void send(OutgoingFrame, Sent sent) override {
    sent(error_);
  }
  void receive(Received received) override {
    received(error_, {});
  }
  void close() override {}

 private:
  const Error error_;
};

} // namespace

/// Thread-safe.
class FaultyContext::Links {
 public:
  Links(std::shared_ptr<Injector> injector, Timer& timer)
      : injector_(std::move(injector)), timer_(timer) {}

  std::shared_ptr<Link> wrap(std::shared_ptr<Link> inner, const std::string& peer)
      EXCLUDES(mutex_) {
    auto link = FaultyLink::wrap(std::move(inner), injector_, timer_, peer);
    MutexLock lock(mutex_);
    std::erase_if(links_, [](const auto& weak) { return weak.expired(); });
    links_.push_back(link);
    return link;
  }

  void close() EXCLUDES(mutex_) {
    std::vector<std::weak_ptr<FaultyLink>> links;
    {
      MutexLock lock(mutex_);
      links.swap(links_);
    }
    for (const auto& weak : links) {
      if (const auto link = weak.lock()) {
        link->close();
      }
    }
  }

 private:
  const std::shared_ptr<Injector> injector_;
  Timer& timer_;
  Mutex mutex_{LockRank::faultyLinks};
  std::vector<std::weak_ptr<FaultyLink>> links_ GUARDED_BY(mutex_);
};

FaultyContext::FaultyContext(
    std::unique_ptr<LinkContext> inner, std::shared_ptr<Injector> injector, Timer& timer)
    : inner_(std::move(inner)),
      injector_(std::move(injector)),
      links_(std::make_shared<Links>(injector_, timer)) {}

FaultyContext::~FaultyContext() = default;

std::string FaultyContext::listen(Accepted accepted) {
  return inner_->listen(
      [links = links_, accepted = std::move(accepted)](std::shared_ptr<Link> link) {
        accepted(links->wrap(std::move(link), "")); // its hello will say whose it is
      });
}

std::shared_ptr<Link> FaultyContext::dial(const WorkerRecord& peer) {
  FaultPoint at;
  at.phase = Phase::connect;
  at.from = injector_->self();
  at.to = peer.name;
  if (const auto fault = injector_->decide(at)) {
    return std::make_shared<RefusedLink>(refusedBy(*fault));
  }
  return links_->wrap(inner_->dial(peer), peer.name);
}

std::vector<char> FaultyContext::offer() const {
  return inner_->offer();
}

LinkDescription FaultyContext::describe(const std::vector<char>& peersOffer) const {
  return inner_->describe(peersOffer);
}

void FaultyContext::join() {
  links_->close();
  injector_->awaitWatchers(); // which may be calling back for a link that was just closed
  inner_->join();
}

} // namespace torchwire::faults
