#include "test/unit/support/memory_link.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"

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
    std::function<void()> largeFrameBegan; // or none
    std::deque<SentCallback> sents; // of the threaded style, which calls them from its thread

    bool finished() const {
      return !open && !received && sents.empty();
    }
  };
  using EndPtr = std::shared_ptr<End>;

  const std::shared_ptr<std::atomic<uint64_t>> arrivals =
      std::make_shared<std::atomic<uint64_t>>(0);

  Core(Notifier& notifier, Style style) : notifier_(notifier), style_(style) {}

  void startThread();
  void stopThread() EXCLUDES(mutex_);
  void closeAll(const Error& error) EXCLUDES(mutex_);
  void loseNext(const std::string& address) EXCLUDES(mutex_);
  void beginLargeFrame(const std::string& address) EXCLUDES(mutex_);

  // Of contexts.
  void listen(const std::string& address, LinkContext::Accepted accepted) EXCLUDES(mutex_);
  EndPtr dial(const std::string& from, const std::string& to) EXCLUDES(mutex_);
  void join(const std::string& address) EXCLUDES(mutex_);

  // Of links.
  void send(const EndPtr& end, OutgoingFrame frame, Link::Sent sent) EXCLUDES(mutex_);
  void receive(const EndPtr& end, Link::Received received) EXCLUDES(mutex_);
  void watchLargeFrames(const EndPtr& end, std::function<void()> began) EXCLUDES(mutex_);
  void close(const EndPtr& end) EXCLUDES(mutex_);

  // Of the test.
  bool deliver(const Chooser& choose, const std::string* onlyOf = nullptr) EXCLUDES(mutex_);
  void schedule(Task action) EXCLUDES(mutex_);
  void duringNextDial(Task action) EXCLUDES(mutex_);
  void refuseDials(const std::string& address, int count) EXCLUDES(mutex_);
  size_t dials() const EXCLUDES(mutex_);
  size_t openLinks() const EXCLUDES(mutex_);

 private:
  /// Something that can happen now.
  struct Step {
    enum class Kind { action, dial, sent, received };
    Kind kind;
    uint64_t number;
    EndPtr end; // whose callback it calls; of an action: none
  };
  struct Dial {
    uint64_t number;
    EndPtr accepter;
  };

  std::vector<Step> possibleSteps(const std::string* onlyOf) const REQUIRES(mutex_);
  /// Removes the step from the network and returns what is to run.
  Task take(const Step& step) REQUIRES(mutex_);
  Task takeAction(uint64_t number) REQUIRES(mutex_);
  Task takeDial(const Step& step) REQUIRES(mutex_);
  static Task takeSent(End& end);
  static Task takeReceived(End& end);

  bool awaitCallback(const std::string& address) EXCLUDES(mutex_);
  EndPtr makeEnd(const std::string& address) REQUIRES(mutex_);
  void track(const EndPtr& end) REQUIRES(mutex_);
  void shut(End& end, const Error& error, bool tellOther) REQUIRES(mutex_);
  void changed() EXCLUDES(mutex_);
  void loop() EXCLUDES(mutex_);

  Notifier& notifier_;
  const Style style_;
  std::thread thread_;

  mutable Mutex mutex_{LockRank::test};
  std::condition_variable_any wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  uint64_t next_ GUARDED_BY(mutex_) = 0;
  size_t dialCount_ GUARDED_BY(mutex_) = 0;
  Task duringDial_ GUARDED_BY(mutex_);
  std::map<std::string, int> refusals_ GUARDED_BY(mutex_);
  std::map<std::string, int> toLose_ GUARDED_BY(mutex_); // frames
  std::map<std::string, LinkContext::Accepted> listeners_ GUARDED_BY(mutex_);
  std::map<std::string, int> running_ GUARDED_BY(mutex_); // callbacks that run, by address
  std::vector<Dial> dialed_ GUARDED_BY(mutex_);
  std::map<uint64_t, Task> actions_ GUARDED_BY(mutex_);
  std::vector<EndPtr> ends_ GUARDED_BY(mutex_); // all that may still have callbacks
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
  void watchLargeFrames(std::function<void()> began) override {
    core_->watchLargeFrames(end_, std::move(began));
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
  std::shared_ptr<Link> dial(const WorkerRecord& peer) override {
    const std::string& address = peer.address;
    if (address.rfind("memory://", 0) != 0) {
      throw std::invalid_argument("no link in memory has the address " + address);
    }
    return std::make_shared<MemoryLink>(core_.shared_from_this(), core_.dial(address_, address));
  }
  std::vector<char> offer() const override {
    return {'m', 'e', 'm', 'o', 'r', 'y'};
  }
  LinkDescription describe(const std::vector<char>& peersOffer) const override {
    if (peersOffer == kNothingInCommon) {
      return {"none", "none"};
    }
    if (peersOffer != offer()) {
      throw FormatError("an offer of another kind of link");
    }
    return {"memory", "memory", "", "", nullptr, core_.arrivals};
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

MemoryNetwork::Core::EndPtr MemoryNetwork::Core::dial(
    const std::string& from, const std::string& to) {
  EndPtr dialer;
  Task meanwhile;
  {
    MutexLock lock(mutex_);
    ++dialCount_;
    meanwhile = std::exchange(duringDial_, Task());
    dialer = makeEnd(from);
    int& refusals = refusals_[to];
    if (refusals > 0) {
      --refusals;
      shut(*dialer, Error(ErrorCode::unreachable, "nobody listens at " + to), false);
    } else if (!listeners_.contains(to)) {
      shut(*dialer, Error(ErrorCode::nobodyListens, "nobody listens at " + to), false);
    } else {
      const EndPtr accepter = makeEnd(to);
      dialer->other = accepter;
      accepter->other = dialer;
      dialed_.push_back({next_++, accepter});
    }
  }
  changed();
  if (meanwhile) {
    meanwhile();
  }
  return dialer;
}

void MemoryNetwork::Core::send(const EndPtr& end, OutgoingFrame frame, Link::Sent sent) {
  Error error;
  {
    MutexLock lock(mutex_);
    error = end->error;
    const EndPtr other = end->other.lock();
    int& toLose = toLose_[other ? other->address : ""];
    if (toLose > 0) {
      --toLose;
    } else if (!error && other && other->open) {
      other->arrivals.push_back({next_++, false, loopBack(std::move(frame))});
    }
    if (style_ == Style::threaded) {
      end->sents.push_back({next_++, error, std::move(sent)});
      track(end);
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
    track(end);
  }
  changed();
}

void MemoryNetwork::Core::watchLargeFrames(const EndPtr& end, std::function<void()> began) {
  MutexLock lock(mutex_);
  end->largeFrameBegan = std::move(began);
}

void MemoryNetwork::Core::close(const EndPtr& end) {
  {
    MutexLock lock(mutex_);
    if (!end->open) {
      return;
    }
    shut(*end, Error(ErrorCode::linkBroken, "the link was closed on this side"), true);
  }
  changed();
}

void MemoryNetwork::Core::closeAll(const Error& error) {
  {
    MutexLock lock(mutex_);
    for (const EndPtr& end : ends_) {
      shut(*end, error, false);
    }
  }
  changed();
}

void MemoryNetwork::Core::loseNext(const std::string& address) {
  MutexLock lock(mutex_);
  ++toLose_[address];
}

void MemoryNetwork::Core::beginLargeFrame(const std::string& address) {
  std::vector<std::function<void()>> began;
  {
    MutexLock lock(mutex_);
    for (const EndPtr& end : ends_) {
      if (end->address == address && end->open && end->largeFrameBegan) {
        began.push_back(end->largeFrameBegan);
      }
    }
  }
  for (const auto& tell : began) {
    tell();
  }
}

void MemoryNetwork::Core::join(const std::string& address) {
  LinkContext::Accepted listener; // destroyed unlocked
  {
    MutexLock lock(mutex_);
    listener.swap(listeners_[address]);
    listeners_.erase(address);
    for (const EndPtr& end : ends_) {
      if (end->address == address) {
        shut(*end, Error(ErrorCode::linkBroken, "the context has ended"), true);
      }
    }
  }
  do {
    while (deliver(nullptr, &address)) {
    }
  } while (!awaitCallback(address));
  changed();
}

/// Returns when no callback of the address runs. False: another is due, for one that has run may have begun to receive anew.
bool MemoryNetwork::Core::awaitCallback(const std::string& address) {
  MutexLock lock(mutex_);
  while (running_[address] > 0) {
    wake_.wait(lock);
  }
  return possibleSteps(&address).empty();
}

// ---- ends ---------------------------------------------------------------------------------------

MemoryNetwork::Core::EndPtr MemoryNetwork::Core::makeEnd(const std::string& address) {
  std::erase_if(ends_, [](const EndPtr& end) { return end->finished(); });
  auto end = std::make_shared<End>();
  end->address = address;
  ends_.push_back(end);
  return end;
}

void MemoryNetwork::Core::track(const EndPtr& end) {
  if (std::find(ends_.begin(), ends_.end(), end) == ends_.end()) {
    ends_.push_back(end);
  }
}

void MemoryNetwork::Core::shut(End& end, const Error& error, bool tellOther) {
  if (!end.open) {
    return;
  }
  end.open = false;
  end.error = error;
  end.arrivals.clear();
  for (End::SentCallback& callback : end.sents) {
    callback.error = error;
  }
  const EndPtr other = end.other.lock();
  if (tellOther && other && other->open) {
    other->arrivals.push_back({next_++, true, {}});
  }
}

// ---- steps --------------------------------------------------------------------------------------

std::vector<MemoryNetwork::Core::Step> MemoryNetwork::Core::possibleSteps(
    const std::string* onlyOf) const {
  std::vector<Step> steps;
  for (const auto& [number, action] : actions_) {
    steps.push_back({Step::Kind::action, number, nullptr});
  }
  for (const Dial& dial : dialed_) {
    steps.push_back({Step::Kind::dial, dial.number, dial.accepter});
  }
  for (const EndPtr& end : ends_) {
    if (!end->sents.empty()) {
      steps.push_back({Step::Kind::sent, end->sents.front().number, end});
    }
    if (end->received && !end->open) {
      steps.push_back({Step::Kind::received, end->receivedNumber, end});
    } else if (end->received && !end->arrivals.empty()) {
      steps.push_back({Step::Kind::received, end->arrivals.front().number, end});
    }
  }
  if (onlyOf != nullptr) {
    std::erase_if(steps, [&](const Step& s) { return !s.end || s.end->address != *onlyOf; });
  }
  std::sort(
      steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.number < b.number; });
  return steps;
}

Task MemoryNetwork::Core::take(const Step& step) {
  switch (step.kind) {
    case Step::Kind::action:
      return takeAction(step.number);
    case Step::Kind::dial:
      return takeDial(step);
    case Step::Kind::sent:
      return takeSent(*step.end);
    case Step::Kind::received:
      return takeReceived(*step.end);
  }
  return Task();
}

Task MemoryNetwork::Core::takeAction(uint64_t number) {
  const auto it = actions_.find(number);
  Task action = std::move(it->second);
  actions_.erase(it);
  return action;
}

Task MemoryNetwork::Core::takeDial(const Step& step) {
  std::erase_if(dialed_, [&](const Dial& dial) { return dial.number == step.number; });
  const auto listener = listeners_.find(step.end->address);
  if (listener == listeners_.end()) {
    shut(*step.end, Error(ErrorCode::linkBroken, "the listener has gone"), true);
    return Task([] {});
  }
  return Task([accepted = listener->second, core = shared_from_this(), end = step.end] {
    accepted(std::make_shared<MemoryLink>(core, end));
  });
}

Task MemoryNetwork::Core::takeSent(End& end) {
  Task task([callback = std::move(end.sents.front())] { callback.sent(callback.error); });
  end.sents.pop_front();
  return task;
}

Task MemoryNetwork::Core::takeReceived(End& end) {
  IncomingFrame frame;
  if (end.open && end.arrivals.front().endOfLink) {
    end.open = false;
    end.error = Error(ErrorCode::linkBroken, "the other side closed the link");
    end.arrivals.clear();
  } else if (end.open) {
    frame = std::move(end.arrivals.front().frame);
    end.arrivals.pop_front();
  }
  return Task([received = std::exchange(end.received, nullptr), error = end.error,
               frame = std::move(frame)]() mutable { received(error, std::move(frame)); });
}

bool MemoryNetwork::Core::deliver(const Chooser& choose, const std::string* onlyOf) {
  std::vector<Step> steps;
  Task task;
  std::string address;
  {
    MutexLock lock(mutex_);
    steps = possibleSteps(onlyOf);
    if (steps.empty()) {
      return false;
    }
    const Step& step = steps[choose && steps.size() > 1 ? choose(steps.size()) : 0];
    address = step.end ? step.end->address : std::string();
    task = take(step);
    ++running_[address];
  }
  task();
  task = Task(); // what the callback holds goes before the step counts as over
  {
    MutexLock lock(mutex_);
    --running_[address];
  }
  changed();
  return true;
}

void MemoryNetwork::Core::changed() {
  {
    MutexLock lock(mutex_); // or the thread could miss the wake-up between its look and its wait
    wake_.notify_all();
  }
  notifier_.notify();
  if (style_ == Style::synchronous) {
    while (deliver(nullptr)) {
    }
  }
}

void MemoryNetwork::Core::startThread() {
  thread_ = std::thread([this] { loop(); });
}

void MemoryNetwork::Core::stopThread() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void MemoryNetwork::Core::loop() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (!stopping_ && possibleSteps(nullptr).empty()) {
        wake_.wait(lock);
      }
      if (stopping_) {
        return;
      }
    }
    deliver(nullptr);
  }
}

// ---- what the test does -------------------------------------------------------------------------

void MemoryNetwork::Core::schedule(Task action) {
  {
    MutexLock lock(mutex_);
    actions_.emplace(next_++, std::move(action));
  }
  changed();
}

void MemoryNetwork::Core::duringNextDial(Task action) {
  MutexLock lock(mutex_);
  duringDial_ = std::move(action);
}

void MemoryNetwork::Core::refuseDials(const std::string& address, int count) {
  MutexLock lock(mutex_);
  refusals_[address] = count;
}

size_t MemoryNetwork::Core::dials() const {
  MutexLock lock(mutex_);
  return dialCount_;
}

size_t MemoryNetwork::Core::openLinks() const {
  MutexLock lock(mutex_);
  size_t links = 0;
  for (const EndPtr& end : ends_) {
    const EndPtr other = end->other.lock();
    // Of two open sides, one counts.
    links += end->open && !(other && other->open && other < end) ? 1 : 0;
  }
  return links;
}

// ---- the network --------------------------------------------------------------------------------

MemoryNetwork::MemoryNetwork(Notifier& notifier, Style style)
    : notifier_(notifier), style_(style), core_(std::make_shared<Core>(notifier, style)) {
  if (style == Style::threaded) {
    core_->startThread();
  }
}

MemoryNetwork::~MemoryNetwork() {
  core_->stopThread();
  for (const auto& [address, context] : contexts_) {
    context->join();
  }
}

LinkContext& MemoryNetwork::context(const std::string& address) {
  MutexLock lock(mutex_);
  auto& context = contexts_[address];
  if (!context) {
    context = std::make_unique<Context>(*core_, address);
  }
  return *context;
}

bool MemoryNetwork::deliverOne(const Chooser& choose) {
  return core_->deliver(choose);
}

void MemoryNetwork::deliverAll(const Chooser& choose) {
  while (core_->deliver(choose)) {
  }
}

void MemoryNetwork::schedule(Task action) {
  core_->schedule(std::move(action));
}

void MemoryNetwork::duringNextDial(Task action) {
  core_->duringNextDial(std::move(action));
}

void MemoryNetwork::refuseDials(const std::string& address, int count) {
  core_->refuseDials(address, count);
}

void MemoryNetwork::cut() {
  core_->closeAll(Error(ErrorCode::linkBroken, "the network was cut"));
}

void MemoryNetwork::loseNext(const std::string& address) {
  core_->loseNext(address);
}

void MemoryNetwork::beginLargeFrame(const std::string& address) {
  core_->beginLargeFrame(address);
}

const std::shared_ptr<std::atomic<uint64_t>>& MemoryNetwork::arrivals() const {
  return core_->arrivals;
}

size_t MemoryNetwork::dials() const {
  return core_->dials();
}

size_t MemoryNetwork::openLinks() const {
  return core_->openLinks();
}

const char* nameOf(MemoryNetwork::Style style) {
  switch (style) {
    case MemoryNetwork::Style::pumped:
      return "pumped";
    case MemoryNetwork::Style::synchronous:
      return "synchronous";
    case MemoryNetwork::Style::threaded:
      return "threaded";
  }
  return "";
}

} // namespace torchwire
