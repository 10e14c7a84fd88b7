// Links in memory: a network of named addresses within the test's process.
//
// A step is one thing that happens on the network: a dial reaches its listener, a frame or the end of
// a link reaches the receive that waits for it, or what the test itself scheduled. Steps of one
// direction of a link keep their order; beyond that any order is possible, as between sockets:
//
//   link 1  a ──hello──▶ b      the steps of links 1 and 2 interleave as the test chooses
//   link 2  b ──hello──▶ a
//
// A side that closes takes nothing back: what it has sent arrives, then the end of the link.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/task.h"
#include "backend/link/link.h"
#include "test/unit/support/notifier.h"

namespace torchwire {

/// Thread-safe.
class MemoryNetwork {
 public:
  enum class Style {
    pumped, // a step happens when the test calls for it
    synchronous, // every step happens at once, within the call that made it possible
    threaded, // steps happen on the network's thread
  };
  /// An offer with which the network's contexts have nothing in common; others they cannot read.
  inline static const std::vector<char> kNothingInCommon = {'-'};
  /// Which of so many possible steps comes next.
  using Chooser = std::function<size_t(size_t options)>;

  MemoryNetwork(Notifier& notifier, Style style);
  /// Closes all links; their callbacks run within.
  ~MemoryNetwork();
  MemoryNetwork(const MemoryNetwork&) = delete;
  MemoryNetwork& operator=(const MemoryNetwork&) = delete;

  /// The context that listens at this address ("memory://a"). It lives as long as the network.
  LinkContext& context(const std::string& address);

  /// Lets the oldest possible step happen, or the one that the test chooses; false if there is none.
  bool deliverOne(const Chooser& choose = nullptr);
  /// Lets steps happen until none is possible.
  void deliverAll(const Chooser& choose = nullptr);
  /// Delivers and waits until the condition holds; false if it does not within the notifier's patience.
  template <typename Condition>
  bool deliverUntil(Condition holds) {
    return notifier_.waitUntil([&] {
      if (style_ != Style::threaded) {
        deliverAll();
      }
      return holds();
    });
  }

  /// Makes an action of the test one of the possible steps.
  void schedule(Task action);
  /// Runs the action within the next dial, before that returns.
  void duringNextDial(Task action);
  /// The next `count` dials of the address fail as if it could not be reached.
  void refuseDials(const std::string& address, int count);
  /// Ends all links on both sides; frames under way are lost.
  void cut();
  /// The next frame that is sent to the address is lost, and no link.
  void loseNext(const std::string& address);
  /// On each link of the address a large frame begins to arrive.
  void beginLargeFrame(const std::string& address);
  /// Of bytes, on all links; the test counts.
  const std::shared_ptr<std::atomic<uint64_t>>& arrivals() const;

  size_t dials() const;
  /// Links of which a side is open.
  size_t openLinks() const;

 private:
  class Core;
  class Context;
  class MemoryLink;

  Notifier& notifier_;
  const Style style_;
  const std::shared_ptr<Core> core_; // shared with the links
  Mutex mutex_{LockRank::test};
  std::map<std::string, std::unique_ptr<LinkContext>> contexts_ GUARDED_BY(mutex_);
};

const char* nameOf(MemoryNetwork::Style style);

} // namespace torchwire
