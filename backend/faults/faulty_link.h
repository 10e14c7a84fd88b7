// Links on which a plan makes things go wrong.
//
//   send() ── decide: request, response ──▶ waiting (delay, reorder) ──▶ gate (partition) ──▶ inner link
//                                 └──────────────────────────────────────────▲
//   receive() ◀── arrived ◀── waiting (delay, reorder) ◀── decide: inFlight ◀── inner link
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/timer.h"
#include "backend/faults/injector.h"
#include "backend/link/link.h"

namespace torchwire::faults {

/// Wraps a link, and asks an injector about each frame. From the first receive on, an inner receive is
/// always pending. Thread-safe.
class FaultyLink final : public Link,
                         public PlanWatcher,
                         public std::enable_shared_from_this<FaultyLink> {
 public:
  /// `peer`: the name of the worker at the other end, this worker's own for its link to itself; empty: it will be
  /// known by the hello that arrives. The timer must not be gone before the link is closed.
  static std::shared_ptr<FaultyLink> wrap(
      std::shared_ptr<Link> inner, std::shared_ptr<Injector> injector, Timer& timer,
      std::string peer);
  ~FaultyLink() override;

  void send(OutgoingFrame frame, Sent sent) override EXCLUDES(mutex_);
  void receive(Received received) override EXCLUDES(mutex_);
  void close() override EXCLUDES(mutex_);
  void planChanged() override EXCLUDES(mutex_);

 private:
  // A frame on its way out.
  struct Item {
    OutgoingFrame frame;
    Sent sent;
    FrameKind kind{};
    std::optional<FaultPoint> at = std::nullopt; // nothing: no rule is about it
    bool midTensorDone = false; // the rules of that phase have been asked
  };
  struct WaitingItem {
    Item item;
    bool untilNext = false; // reorder
  };
  struct WaitingArrival {
    IncomingFrame frame;
    bool untilNext = false;
  };

  FaultyLink(
      std::shared_ptr<Link> inner, std::shared_ptr<Injector> injector, Timer& timer,
      std::string peer);

  // faulty_link.cpp: the way out.
  std::optional<FaultPoint> pointOf(const OutgoingFrame& frame, const FrameHeader& header);
  void inject(Item item, const Entry& fault);
  void sendTwice(Item item);
  enum class Wait { delay, reorder, stall };
  /// Keeps the item and returns its id; where the link is closed already, its `sent` is told so instead.
  std::optional<uint64_t> keep(Item item, Wait kind) EXCLUDES(mutex_);
  void wait(Item item, const Entry& fault) EXCLUDES(mutex_);
  void endWait(uint64_t id, bool inTime) EXCLUDES(mutex_);
  void goOut(Item item) EXCLUDES(mutex_);
  void openGate() EXCLUDES(mutex_);
  void alarmGate(Partitions::Clock::time_point until) EXCLUDES(mutex_);
  void onGateAlarm(Partitions::Clock::time_point until, bool inTime) EXCLUDES(mutex_);
  void pass(Item item) EXCLUDES(mutex_);
  void sendWaitingForNext(uint64_t from) EXCLUDES(mutex_);

  // faulty_link_tensors.cpp: faults in mid-tensor.
  bool injectInTensors(Item& item) EXCLUDES(mutex_);
  MidTensor::Injection midTensorInjection(const Entry& fault);
  void stall(Item item, const Entry& fault) EXCLUDES(mutex_);
  void endStall(uint64_t id) EXCLUDES(mutex_);
  void noteTorn(const Entry& fault) EXCLUDES(mutex_);
  Error causeOf(const Error& error) const EXCLUDES(mutex_);

  // faulty_link_arrivals.cpp: the way in.
  void pump() EXCLUDES(mutex_);
  void onArrival(const Error& error, IncomingFrame frame) EXCLUDES(mutex_);
  void onRequest(IncomingFrame frame, const FrameHeader& header) EXCLUDES(mutex_);
  void injectOnArrival(IncomingFrame frame, const FaultPoint& at, const Entry& fault)
      EXCLUDES(mutex_);
  void waitArrival(IncomingFrame frame, const Entry& fault) EXCLUDES(mutex_);
  void endWaitArrival(uint64_t id, bool inTime) EXCLUDES(mutex_);
  void learnPeer(const IncomingFrame& hello) EXCLUDES(mutex_);
  void handOn(IncomingFrame frame, FrameKind kind) EXCLUDES(mutex_);
  void deliver() EXCLUDES(mutex_);

  // What a fault does to the link.
  /// `last`: what just arrives, and is handed on all the same.
  void breakLink(const Entry& fault, std::optional<IncomingFrame> last = std::nullopt)
      EXCLUDES(mutex_);
  void failOwnCalls(
      const Entry& fault, const std::vector<Item>& held, std::optional<IncomingFrame> last)
      EXCLUDES(mutex_);
  std::vector<Item> takeHeld() REQUIRES(mutex_);
  std::string peer() const EXCLUDES(mutex_);
  bool isClosed() const EXCLUDES(mutex_);

  const std::shared_ptr<Link> inner_;
  const std::shared_ptr<Injector> injector_;
  Timer& timer_;
  const bool toSelf_;

  mutable Mutex mutex_{LockRank::faultyLink};
  std::string peer_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false; // by the user, or by a fault
  uint64_t next_ GUARDED_BY(mutex_) = 0; // names what waits

  // On the way out.
  std::atomic<size_t> held_{
      0}; // frames that are held, or pass the gate now; changed under the mutex
  std::map<uint64_t, WaitingItem> waiting_ GUARDED_BY(mutex_);
  std::deque<Item> gate_ GUARDED_BY(mutex_);
  bool passing_ GUARDED_BY(mutex_) = false; // by some thread, which looks again before it ends
  bool stalled_ GUARDED_BY(mutex_) = false; // by a fault in mid-tensor on the link to itself
  std::optional<Partitions::Clock::time_point> gateAlarm_ GUARDED_BY(mutex_);
  std::optional<Entry> torn_
      GUARDED_BY(mutex_); // the drop in mid-tensor after which nothing can go out

  // On the way in.
  bool pumping_ GUARDED_BY(mutex_) = false;
  bool innerPending_ GUARDED_BY(mutex_) = false;
  std::map<uint64_t, WaitingArrival> waitingArrivals_ GUARDED_BY(mutex_);
  std::deque<IncomingFrame> arrived_ GUARDED_BY(mutex_);
  Error end_ GUARDED_BY(mutex_); // comes after what has arrived
  Received received_ GUARDED_BY(mutex_);
  bool delivering_ GUARDED_BY(mutex_) = false;
};

} // namespace torchwire::faults
