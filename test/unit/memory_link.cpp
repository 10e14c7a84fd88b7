#include "test/unit/memory_link.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "backend/annotations.h"

namespace torchwire {

// ---- the core -----------------------------------------------------------------------------------

/// The links and what is under way on them. Callbacks run unlocked. Thread-safe.
class MemoryNetwork::Core : public std::enable_shared_from_this<Core> {
 public:
  /// One side of a link. Guarded by the core's mutex.
  struct End {
    struct Arrival {
      uint64_t number; // steps are numbered in the order in which they came about
      bool endOfLink;
      IncomingFrame frame;
    };
    struct SentCallback {
      uint64_t number;
      Error error;
      Link::Sent sent;
    };

    std::string address; // of the context whose side this is
    std::weak_ptr<End> other;
    bool open = true;
    Error error; // why it is not open
    std::deque<Arrival> arrivals;
    Link::Received received; // the receive that waits
    uint64_t receivedNumber = 0;
    std::deque<SentCallback> sents; // of the threaded style, which calls them from its thread

    bool finished() const {
      return !open && !received && sents.empty();
    }
  };
  using EndPtr = std::shared_ptr<End>;

  Core(Bell& bell, Style style) : bell_(bell), style_(style) {}

  void startThread();
  void stopThread() EXCLUDES(mutex_);
  void closeAll(const Error& error) EXCLUDES(mutex_);

  // Of contexts.
  void listen(const std::string& address, LinkContext::Accepted accepted) EXCLUDES(mutex_);
  EndPtr dial(const std::string& from, const std::string& to) EXCLUDES(mutex_);
  void join(const std::string& address) EXCLUDES(mutex_);

  // Of links.
  void send(const EndPtr& end, OutgoingFrame frame, Link::Sent sent) EXCLUDES(mutex_);
  void receive(const EndPtr& end, Link::Received received) EXCLUDES(mutex_);
  void close(const EndPtr& end) EXCLUDES(mutex_);

  // Of the test.
  bool deliver(const Chooser& choose, const std::string* onlyOf = nullptr) EXCLUDES(mutex_);
  void schedule(Task action) EXCLUDES(mutex_);
  void duringNextDial(Task action) EXCLUDES(mutex_);
  void refuseDials(const std::string& address, int count) EXCLUDES(mutex_);
  size_t dials() const EXCLUDES(mutex_);
  size_t openLinks() const EXCLUDES(mutex_);

 private:
  /// A step that is possible now: `take` removes it from the network and returns what to run.
  struct Step {
    uint64_t number;
    std::string address; // whose callbacks it runs; empty: the test's
    std::function<Task()> take;
  };
  struct Dial {
    uint64_t number;
    std::string to;
    EndPtr dialler;
    EndPtr accepter;
  };

  void addStepsOf(const EndPtr& end, std::vector<Step>& steps) REQUIRES(mutex_);
  Task takeSent(const EndPtr& end) REQUIRES(mutex_);
  Task takeReceived(const EndPtr& end) REQUIRES(mutex_);
  Task takeDial(std::list<Dial>::iterator dial) REQUIRES(mutex_);
  std::vector<Step> possibleSteps(const std::string* onlyOf) REQUIRES(mutex_);
  EndPtr makeEnd(const std::string& address) REQUIRES(mutex_);
  void shut(const EndPtr& end, const Error& error, bool tellOther) REQUIRES(mutex_);
  void changed() EXCLUDES(mutex_);
  void loop();

  Bell& bell_;
  const Style style_;

  mutable Mutex mutex_;
  std::condition_variable_any wake_;
  std::thread thread_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  uint64_t next_ GUARDED_BY(mutex_) = 0;
  size_t dialCount_ GUARDED_BY(mutex_) = 0;
  Task duringDial_ GUARDED_BY(mutex_);
  std::map<std::string, int> refusals_ GUARDED_BY(mutex_);
  std::map<std::string, LinkContext::Accepted> listeners_ GUARDED_BY(mutex_);
  std::map<std::string, int> running_ GUARDED_BY(mutex_); // callbacks, by address
  std::list<Dial> dialled_ GUARDED_BY(mutex_);
  std::list<std::pair<uint64_t, Task>> actions_ GUARDED_BY(mutex_);
  std::list<EndPtr> ends_ GUARDED_BY(mutex_); // that may still have callbacks
};

// ---- links and contexts -------------------------------------------------------------------------

/// Thread-safe.
class MemoryNetwork::MemoryLink final : public Link {
 public:
  MemoryLink(std::shared_ptr<Core> core, Core::EndPtr end)
      : core_(std::move(core)), end_(std::move(end)) {}
  ~MemoryLink() override {
    core_->close(end_);
  }

  void send(OutgoingFrame frame, Sent sent) override {
    core_->send(end_, std::move(frame), std::move(sent));
  }
  void receive(Received received) override {
    core_->receive(end_, std::move(received));
  }
  void close() override {
    core_->close(end_);
  }

 private:
  const std::shared_ptr<Core> core_;
  const Core::EndPtr end_;
};

/// Thread-safe.
class MemoryNetwork::Context final : public LinkContext {
 public:
  Context(Core& core, std::string address) : core_(core), address_(std::move(address)) {}

  std::string listen(Accepted accepted) override {
    core_.listen(address_, std::move(accepted));
    return address_;
  }
  std::shared_ptr<Link> dial(const std::string& address) override {
    return std::make_shared<MemoryLink>(core_.shared_from_this(), core_.dial(address_, address));
  }
  std::vector<char> offer() const override {
    return {'m', 'e', 'm', 'o', 'r', 'y'};
  }
  LinkDescription describe(const std::vector<char>& peersOffer) const override {
    if (peersOffer != offer()) {
      throw FormatError("an offer of another kind of link");
    }
    return {"memory", "memory"};
  }
  void join() override {
    core_.join(address_);
  }

 private:
  Core& core_;
  const std::string address_;
};

// ---- operations ---------------------------------------------------------------------------------

void MemoryNetwork::Core::listen(const std::string& address, LinkContext::Accepted accepted) {
  MutexLock lock(mutex_);
  listeners_[address] = std::move(accepted);
}

MemoryNetwork::Core::EndPtr MemoryNetwork::Core::makeEnd(const std::string& address) {
  std::erase_if(ends_, [](const EndPtr& end) { return end->finished(); });
  auto end = std::make_shared<End>();
  end->address = address;
  ends_.push_back(end);
  return end;
}

MemoryNetwork::Core::EndPtr MemoryNetwork::Core::dial(
    const std::string& from, const std::string& to) {
  EndPtr dialler;
  Task meanwhile;
  {
    MutexLock lock(mutex_);
    ++dialCount_;
    meanwhile = std::exchange(duringDial_, Task());
    dialler = makeEnd(from);
    int& refusals = refusals_[to];
    if (refusals > 0 || !listeners_.contains(to) || !listeners_.contains(from)) {
      refusals = std::max(refusals - 1, 0);
      shut(dialler, Error(ErrorCode::unreachable, "nobody listens at " + to), false);
    } else {
      const EndPtr accepter = makeEnd(to);
      dialler->other = accepter;
      accepter->other = dialler;
      dialled_.push_back({next_++, to, dialler, accepter});
    }
  }
  changed();
  if (meanwhile) {
    meanwhile();
  }
  return dialler;
}

void MemoryNetwork::Core::send(const EndPtr& end, OutgoingFrame frame, Link::Sent sent) {
  Error error;
  {
    MutexLock lock(mutex_);
    error = end->error;
    const EndPtr other = end->other.lock();
    if (!error && other && other->open) {
      other->arrivals.push_back({next_++, false, loopBack(std::move(frame))});
    }
    if (style_ == Style::threaded) {
      end->sents.push_back({next_++, error, std::move(sent)});
      if (end->sents.size() == 1 && !end->open) {
        ends_.push_back(end); // it may have been taken for finished
      }
    }
  }
  if (style_ != Style::threaded) {
    sent(error); // the bytes have been copied
  }
  changed();
}

void MemoryNetwork::Core::receive(const EndPtr& end, Link::Received received) {
  {
    MutexLock lock(mutex_);
    if (end->received) {
      throw std::logic_error("a receive is pending already");
    }
    end->received = std::move(received);
    end->receivedNumber = next_++;
    if (!end->open) {
      ends_.push_back(end);
    }
  }
  changed();
}

void MemoryNetwork::Core::shut(const EndPtr& end, const Error& error, bool tellOther) {
  if (!end->open) {
    return;
  }
  end->open = false;
  end->error = error;
  end->arrivals.clear();
  for (End::SentCallback& callback : end->sents) {
    callback.error = error;
  }
  const EndPtr other = end->other.lock();
  if (tellOther && other && other->open) {
    other->arrivals.push_back({next_++, true, {}});
  }
}

void MemoryNetwork::Core::close(const EndPtr& end) {
  {
    MutexLock lock(mutex_);
    shut(end, Error(ErrorCode::linkBroken, "the link was closed on this side"), true);
  }
  changed();
}

void MemoryNetwork::Core::closeAll(const Error& error) {
  {
    MutexLock lock(mutex_);
    for (const EndPtr& end : ends_) {
      shut(end, error, false);
    }
  }
  changed();
}

void MemoryNetwork::Core::join(const std::string& address) {
  LinkContext::Accepted listener; // destroyed unlocked
  {
    MutexLock lock(mutex_);
    if (const auto it = listeners_.find(address); it != listeners_.end()) {
      listener = std::move(it->second);
      listeners_.erase(it);
    }
    for (const EndPtr& end : ends_) {
      if (end->address == address) {
        shut(end, Error(ErrorCode::linkBroken, "the context has ended"), true);
      }
    }
  }
  while (deliver(nullptr, &address)) {
  }
  {
    MutexLock lock(mutex_);
    while (running_[address] > 0) {
      wake_.wait(lock);
    }
  }
  changed();
}

// ---- steps --------------------------------------------------------------------------------------

void MemoryNetwork::Core::addStepsOf(const EndPtr& end, std::vector<Step>& steps) {
  if (!end->sents.empty()) {
    steps.push_back(
        {end->sents.front().number, end->address, [this, end] {
           MutexLock::assumeHeld(mutex_);
           return takeSent(end);
         }});
  }
  if (end->received && (!end->open || !end->arrivals.empty())) {
    const uint64_t number = end->open ? end->arrivals.front().number : end->receivedNumber;
    steps.push_back({number, end->address, [this, end] { return takeReceived(end); }});
  }
}

} // namespace torchwire
