// Links that fail on a seeded plan, around the links of any other kind.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/timer.h"
#include "backend/link/link.h"

namespace torchwire {

/// What goes wrong how often. The same seed gives the same decisions in the same order; tests print it.
struct SimulatedFaultPlan {
  uint64_t seed = 0;
  double refuseDial = 0; // probabilities
  double breakAtSend = 0; // the link breaks and the send fails
  double loseAtSend = 0; // the send succeeds, but the link breaks and the frame never arrives
  double damageSend =
      0; // a request, a response or an acknowledgement arrives as a frame of no kind
  double delaySend = 0;
  std::chrono::microseconds maxDelay{2000};
  int breakAfter = 0; // sends on one side of a link before it breaks; 0: any number
};

/// The decisions of a plan. Thread-safe.
class SimulatedFaults {
 public:
  enum class Fate { pass, fail, lose, delay };

  explicit SimulatedFaults(const SimulatedFaultPlan& plan) : plan_(plan), random_(plan.seed) {}

  bool refusesDial() EXCLUDES(mutex_);
  /// Of the n-th send (from 1) on one side of a link.
  Fate ofSend(int n) EXCLUDES(mutex_);
  bool damages() EXCLUDES(mutex_);
  std::chrono::microseconds delay() EXCLUDES(mutex_);
  /// From now on nothing goes wrong.
  void heal() EXCLUDES(mutex_);

 private:
  bool happens(double probability) REQUIRES(mutex_);

  Mutex mutex_{LockRank::test};
  const SimulatedFaultPlan plan_;
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  bool healed_ GUARDED_BY(mutex_) = false;
};

class SimulatedFaultyLink;

/// Wraps a context, and all its links with it. Thread-safe.
class SimulatedFaultyContext final : public LinkContext {
 public:
  /// The timer runs delayed sends; it may stop before the context does.
  SimulatedFaultyContext(LinkContext& inner, Timer& timer, const SimulatedFaultPlan& plan);

  std::string listen(Accepted accepted) override;
  std::shared_ptr<Link> dial(const WorkerRecord& peer) override;
  std::vector<char> offer() const override;
  LinkDescription describe(const std::vector<char>& peersOffer) const override;
  void join() override;

  void heal();

 private:
  struct Shared;

  LinkContext& inner_;
  const std::shared_ptr<Shared> shared_; // with the links and the listener
};

} // namespace torchwire
