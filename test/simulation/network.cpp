#include "test/simulation/network.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend/base/thread_role.h"

namespace torchwire::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kLossTimeout{1800};
constexpr int kKeepAlive = 10000; // milliseconds
constexpr size_t kManyEnds = 64;

bool isOfHandshake(const IncomingFrame& frame) {
  const auto kind = static_cast<FrameKind>(frame.head.at(0));
  return kind == FrameKind::hello || kind == FrameKind::welcome || kind == FrameKind::refuse;
}

} // namespace

struct Network::Arrival {
  bool endOfLink = false;
  IncomingFrame frame;
};

/// One side of a link.
struct Network::End {
  Slot at;
  Slot to;
  EventQueue::Owner owner;
  std::weak_ptr<End> other;
  bool open = true;
  bool abandoned = false; // the other side has given up without a word
  Error error;
  std::deque<Arrival> underWay; // to this side
  size_t stalled = 0; // of these: their time has come, and the way is cut
  Time lastDue{};
  std::deque<Arrival> arrived;
  Link::Received received;
  bool heard = false; // something has arrived
  bool reporting = false;
  bool unacknowledged = false;
  uint64_t waits = 0; // for acknowledgements, so far
};

// ---- links and contexts -------------------------------------------------------------------------

/// Not thread-safe.
class Network::SimulatedLink final : public Link {
 public:
  SimulatedLink(Network& network, EndPtr end) : network_(network), end_(std::move(end)) {}
  ~SimulatedLink() override {
    network_.close(end_);
  }

  void send(OutgoingFrame frame, Sent sent) override {
    network_.send(end_, std::move(frame), sent);
  }
  void receive(Received received) override {
    network_.receive(end_, std::move(received));
  }
  void close() override {
    network_.close(end_);
  }

 private:
  Network& network_;
  const EndPtr end_;
};

/// Not thread-safe.
class Network::Context final : public LinkContext {
 public:
  Context(Network& network, Slot slot, EventQueue::Owner owner, std::string address)
      : network_(network), slot_(slot), owner_(owner), address_(std::move(address)) {}

  std::string listen(Accepted accepted) override {
    network_.listeners_[address_] = {owner_, std::move(accepted)};
    return address_;
  }
  std::shared_ptr<Link> dial(const WorkerRecord& peer) override {
    return std::make_shared<SimulatedLink>(network_, network_.dial(slot_, owner_, peer.address));
  }
  std::vector<char> offer() const override {
    return {'s', 'i', 'm'};
  }
  LinkDescription describe(const std::vector<char>& /*peersOffer*/) const override {
    return {"simulated", "simulated"};
  }
  void join() override {}

 private:
  Network& network_;
  const Slot slot_;
  const EventQueue::Owner owner_;
  const std::string address_;
};

Network::Network(EventQueue& queue, uint64_t seed, Slot slots)
    : queue_(queue),
      slots_(slots),
      paths_(static_cast<size_t>(slots) * static_cast<size_t>(slots)),
      random_(seed, 1) {
  for (size_t i = 0; i < paths_.size(); ++i) {
    paths_[i].random = Random(seed, 1000 + i);
  }
}

std::unique_ptr<LinkContext> Network::context(
    Slot slot, EventQueue::Owner owner, std::string address) {
  return std::make_unique<Context>(*this, slot, owner, std::move(address));
}

void Network::endProcess(EventQueue::Owner owner) {
  std::erase_if(listeners_, [&](const auto& entry) { return entry.second.owner == owner; });
  for (const auto& weak : std::vector(ends_)) {
    const EndPtr end = weak.lock();
    if (end && end->owner == owner) {
      dropHello(end);
      shut(end);
      end->received = nullptr;
    }
  }
}

/// A hello that arrives when its sender has ended, behind that of the process in its place, would be taken for the newer
/// one: see docs/reliability.md, "What is not promised".
void Network::dropHello(const EndPtr& end) {
  const EndPtr other = end->other.lock();
  if (other && !other->heard) {
    other->underWay.clear();
    other->stalled = 0;
  }
}

// ---- operations ---------------------------------------------------------------------------------

Duration Network::delay(Slot from, Slot to) {
  Path& way = path(from, to);
  if (from == to) {
    return microseconds(1 + way.random.below(20));
  }
  const uint64_t most = way.random.oneIn(20) ? 3000 : 200; // now and then one is held up
  return way.extra + microseconds(20 + way.random.below(most));
}

Network::EndPtr Network::makeEnd(Slot at, Slot to, EventQueue::Owner owner) {
  if (ends_.size() >= kManyEnds) {
    std::erase_if(ends_, [](const auto& weak) { return weak.expired(); });
  }
  auto end = std::make_shared<End>();
  end->at = at;
  end->to = to;
  end->owner = owner;
  ends_.push_back(end);
  return end;
}

Network::EndPtr Network::dial(Slot from, EventQueue::Owner owner, const std::string& address) {
  const Slot to = std::stoi(address.substr(address.find("//") + 2));
  const EndPtr dialer = makeEnd(from, to, owner);
  Path& way = path(from, to);
  if (way.refusals > 0) {
    --way.refusals;
    notes_.refused(from, to);
    queue_.after(delay(from, to), EventQueue::kNobody, [this, dialer] {
      fail(dialer, Error(ErrorCode::unreachable, "no route to host"));
    });
    return dialer;
  }
  const EndPtr accepter = makeEnd(to, from, EventQueue::kNobody);
  dialer->other = accepter;
  accepter->other = dialer;
  accepter->lastDue = queue_.now() + delay(from, to);
  queue_.at(accepter->lastDue, EventQueue::kNobody, [this, dial = Dial{dialer, accepter, address}] {
    dialArrives(dial);
  });
  return dialer;
}

void Network::dialArrives(const Dial& dial) {
  if (!dial.dialer->open) {
    return;
  }
  if (isCutOff(*dial.dialer)) { // the answer must come through as well
    waitingDials_.push_back(dial);
    return;
  }
  const auto listener = listeners_.find(dial.address);
  if (listener == listeners_.end()) {
    queue_.after(
        delay(dial.dialer->to, dial.dialer->at), EventQueue::kNobody, [this, dialer = dial.dialer] {
          fail(dialer, Error(ErrorCode::nobodyListens, "connection refused"));
        });
    return;
  }
  dial.accepter->owner = listener->second.owner;
  queue_.after(
      Duration(0), listener->second.owner,
      [this, accepted = listener->second.accepted, accepter = dial.accepter] {
        const DeliverScope scope;
        accepted(std::make_shared<SimulatedLink>(*this, accepter));
      });
}

void Network::send(const EndPtr& end, OutgoingFrame frame, const Link::Sent& sent) {
  if (!end->open) {
    sent(end->error);
    return;
  }
  Path& way = path(end->at, end->to);
  Arrival arrival{false, loopBack(std::move(frame))};
  if (way.damages > 0 && !isOfHandshake(arrival.frame)) {
    --way.damages;
    notes_.damaged(end->at, end->to);
    arrival.frame.head[0] = 0;
  }
  const EndPtr other = end->other.lock();
  if (end->abandoned && !isCutOff(*end)) {
    queue_.after(delay(end->at, end->to) * 2, EventQueue::kNobody, [this, end] {
      fail(end, Error(ErrorCode::linkBroken, "connection reset by peer"));
    });
  } else if (isCutOff(*end)) {
    noteUnacknowledged(end);
  }
  if (way.swallows > 0 && !isOfHandshake(arrival.frame)) {
    --way.swallows;
  } else if (other && other->open && !end->abandoned) {
    travel(other, std::move(arrival));
  }
  sent(Error());
}

void Network::receive(const EndPtr& end, Link::Received received) {
  if (end->received) {
    throw std::logic_error("a receive is pending already");
  }
  end->received = std::move(received);
  report(end);
}

void Network::close(const EndPtr& end) {
  if (end->open) {
    shut(end);
    report(end);
  }
}

/// The other side is told, behind what has been sent.
void Network::shut(const EndPtr& end) {
  if (!end->open) {
    return;
  }
  end->open = false;
  end->error = Error(ErrorCode::linkBroken, "the link was closed on this side");
  end->arrived.clear();
  end->underWay.clear();
  const EndPtr other = end->other.lock();
  if (other && other->open && !end->abandoned) {
    travel(other, Arrival{true, {}});
  }
}

// ---- on the way ---------------------------------------------------------------------------------

bool Network::isCutOff(const End& end) const {
  return isBlocked(end.at, end.to) || isBlocked(end.to, end.at);
}

void Network::travel(const EndPtr& to, Arrival arrival) {
  to->underWay.push_back(std::move(arrival));
  to->lastDue = std::max(to->lastDue, queue_.now() + delay(to->to, to->at));
  queue_.at(to->lastDue, EventQueue::kNobody, [this, to] { arrive(to); });
}

void Network::arrive(const EndPtr& end) {
  if (!end->open || end->underWay.size() <= end->stalled) {
    return;
  }
  if (isBlocked(end->to, end->at)) {
    ++end->stalled;
    const EndPtr sender = end->other.lock();
    if (sender && sender->open) {
      noteUnacknowledged(sender);
    }
    return;
  }
  end->heard = true;
  end->arrived.push_back(std::move(end->underWay.front()));
  end->underWay.pop_front();
  report(end);
}

void Network::report(const EndPtr& end) {
  if (end->received && !end->reporting && (!end->open || !end->arrived.empty())) {
    end->reporting = true;
    queue_.after(Duration(0), end->owner, [this, end] { callReceived(end); });
  }
}

void Network::callReceived(const EndPtr& end) {
  end->reporting = false;
  if (!end->received) {
    return;
  }
  IncomingFrame frame;
  if (end->open && end->arrived.front().endOfLink) {
    end->open = false;
    end->error = Error(ErrorCode::linkBroken, "the other side closed the link");
    end->arrived.clear();
  } else if (end->open) {
    frame = std::move(end->arrived.front().frame);
    end->arrived.pop_front();
  }
  const Link::Received received = std::exchange(end->received, nullptr);
  const DeliverScope scope;
  received(end->error, std::move(frame));
}

// ---- faults -------------------------------------------------------------------------------------

void Network::block(Slot from, Slot to) {
  ++path(from, to).blocked;
}

void Network::unblock(Slot from, Slot to) {
  if (--path(from, to).blocked > 0) {
    return;
  }
  for (const auto& weak : ends_) {
    const EndPtr end = weak.lock();
    if (!end || !end->open) {
      continue;
    }
    if (end->at == to && end->to == from) { // it is sent once more
      end->lastDue =
          std::max(end->lastDue, queue_.now() + milliseconds(1 + path(from, to).random.below(400)));
      for (; end->stalled > 0; --end->stalled) {
        queue_.at(end->lastDue, EventQueue::kNobody, [this, end] { arrive(end); });
      }
    }
    if (!isCutOff(*end)) {
      end->unacknowledged = false;
    }
  }
  for (const Dial& dial : std::exchange(waitingDials_, {})) {
    queue_.after(
        milliseconds(1 + path(from, to).random.below(400)), EventQueue::kNobody,
        [this, dial] { dialArrives(dial); });
  }
}

void Network::noteUnacknowledged(const EndPtr& end) {
  if (end->unacknowledged) {
    return;
  }
  end->unacknowledged = true;
  queue_.after(kLossTimeout, EventQueue::kNobody, [this, end, wait = ++end->waits] {
    if (end->open && end->unacknowledged && end->waits == wait) {
      giveUp(end, "packets were lost for 1.8 s");
    }
  });
}

/// Ends this side only.
void Network::fail(const EndPtr& end, const Error& error) {
  if (!end->open) {
    return;
  }
  end->open = false;
  end->error = error;
  end->arrived.clear();
  end->underWay.clear();
  report(end);
}

void Network::giveUp(const EndPtr& end, const std::string& why) {
  const EndPtr other = end->other.lock();
  if (other && other->open) {
    other->abandoned = true;
    const auto keepAlive = kLossTimeout + milliseconds(random_.below(kKeepAlive));
    queue_.after(keepAlive, EventQueue::kNobody, [this, other] {
      fail(other, Error(ErrorCode::linkBroken, "its keepalives are not answered"));
    });
  }
  fail(end, Error(ErrorCode::linkBroken, why));
}

size_t Network::breakLinks(Slot first, Slot second, Break how) {
  size_t count = 0;
  for (const auto& weak : std::vector(ends_)) {
    const EndPtr end = weak.lock();
    if (!end || !end->open || end->at != first || end->to != second) {
      continue;
    }
    ++count;
    const EndPtr other = end->other.lock();
    const Error broken(ErrorCode::linkBroken, "the connection was aborted");
    switch (how) {
      case Break::both:
        fail(end, broken);
        if (other) {
          fail(other, broken);
        }
        break;
      case Break::first:
        if (other && other->open) {
          travel(other, Arrival{true, {}});
        }
        fail(end, broken);
        break;
      case Break::firstSilently:
        giveUp(end, broken.message());
        break;
    }
  }
  return count;
}

void Network::heal() {
  for (Slot from = 0; from < slots_; ++from) {
    for (Slot to = 0; to < slots_; ++to) {
      Path& way = path(from, to);
      way.extra = Duration(0);
      way.damages = way.refusals = 0;
      while (way.blocked > 0) {
        unblock(from, to);
      }
    }
  }
}

std::vector<Network::LinkView> Network::openSides() const {
  std::vector<LinkView> sides;
  for (const auto& weak : ends_) {
    const EndPtr end = weak.lock();
    if (end && end->open && !queue_.hasEnded(end->owner)) {
      const EndPtr other = end->other.lock();
      sides.push_back({end->at, end->to, !other || !other->open});
    }
  }
  return sides;
}

} // namespace torchwire::simulation
