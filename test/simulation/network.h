// A network of hosts, one for each place in the group, on the simulation's clock.
//
// What carries a link behaves as TCP does:
//
//   - what is sent arrives in order, a moment later;
//   - while one direction between two hosts is cut, what is sent that way arrives after the healing, unless its sender has
//     given the link up meanwhile: 1.8 s after what it has sent first and is not acknowledged, for which the way back is
//     needed as well;
//   - who gives up tells nobody: the other side finds out when it sends something, or by its keepalives;
//   - a process that ends has its links closed, behind what it has sent;
//   - a process that stands still has its links, and dials of it succeed.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/link/link.h"
#include "test/simulation/event_queue.h"
#include "test/simulation/random.h"

namespace torchwire::simulation {

/// A worker's place in the group, which is its rank, and its host.
using Slot = int;

/// Not thread-safe.
class Network {
 public:
  Network(EventQueue& queue, uint64_t seed, Slot slots);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Of a process, which listens at this address: "sim://SLOT:PORT".
  std::unique_ptr<LinkContext> context(Slot slot, EventQueue::Owner owner, std::string address);
  /// Its links close; none of its callbacks is called any more.
  void endProcess(EventQueue::Owner owner);

  // ---- faults

  /// Nothing gets from one host to the other until unblock() has been called as often.
  void block(Slot from, Slot to);
  void unblock(Slot from, Slot to);
  bool isBlocked(Slot from, Slot to) const {
    return path(from, to).blocked > 0;
  }
  /// What is sent takes so much longer.
  void slowDown(Slot from, Slot to, Duration extra) {
    path(from, to).extra = extra;
  }
  enum class Break {
    both, // both sides notice at once; frames under way are lost
    first, // one side does, and the other is told
    firstSilently, // one side does, and tells nobody
  };
  /// Breaks the links between the two. Returns how many there were.
  size_t breakLinks(Slot first, Slot second, Break how);
  /// The next frame that goes that way, other than of a handshake, arrives as one of no kind.
  void damageNext(Slot from, Slot to) {
    ++path(from, to).damages;
  }
  /// The next dials fail as if the host could not be reached.
  void refuseDials(Slot from, Slot to, int count) {
    path(from, to).refusals += count;
  }
  /// The next frame that goes that way never arrives, though the link stays: what no network does.
  void swallowNext(Slot from, Slot to) {
    ++path(from, to).swallows;
  }
  void heal();

  // ---- what there is

  struct LinkView {
    Slot at;
    Slot to;
    bool half; // the other side is closed
  };
  /// Of the sides that are open, those of processes that live.
  std::vector<LinkView> openSides() const;

  /// Who is told of a frame that has been damaged, and of a dial that has been refused.
  struct Notes {
    std::function<void(Slot from, Slot to)> damaged = [](Slot, Slot) {};
    std::function<void(Slot from, Slot to)> refused = [](Slot, Slot) {};
  };
  void setNotes(Notes notes) {
    notes_ = std::move(notes);
  }

 private:
  struct End;
  using EndPtr = std::shared_ptr<End>;
  class SimulatedLink;
  class Context;
  struct Path {
    int blocked = 0;
    Duration extra{0};
    int damages = 0;
    int refusals = 0;
    int swallows = 0;
    Random random{0};
  };
  struct Listener {
    EventQueue::Owner owner;
    LinkContext::Accepted accepted;
  };
  struct Dial {
    EndPtr dialer;
    EndPtr accepter;
    std::string address;
  };

  Path& path(Slot from, Slot to) {
    return paths_[static_cast<size_t>(from * slots_ + to)];
  }
  const Path& path(Slot from, Slot to) const {
    return paths_[static_cast<size_t>(from * slots_ + to)];
  }
  Duration delay(Slot from, Slot to);
  EndPtr makeEnd(Slot at, Slot to, EventQueue::Owner owner);
  bool isCutOff(const End& end) const;

  EndPtr dial(Slot from, EventQueue::Owner owner, const std::string& address);
  void dialArrives(const Dial& dial);
  void send(const EndPtr& end, OutgoingFrame frame, const Link::Sent& sent);
  void receive(const EndPtr& end, Link::Received received);
  void close(const EndPtr& end);

  struct Arrival;
  void travel(const EndPtr& to, Arrival arrival);
  void arrive(const EndPtr& end);
  void report(const EndPtr& end);
  void callReceived(const EndPtr& end);
  void noteUnacknowledged(const EndPtr& end);
  void fail(const EndPtr& end, const Error& error);
  void giveUp(const EndPtr& end, const std::string& why);
  void shut(const EndPtr& end);
  void dropHello(const EndPtr& end);

  EventQueue& queue_;
  const Slot slots_;
  std::vector<Path> paths_;
  std::map<std::string, Listener> listeners_;
  std::vector<std::weak_ptr<End>> ends_;
  std::vector<Dial> waitingDials_; // of hosts that are cut off
  Random random_;
  Notes notes_;
};

} // namespace torchwire::simulation
