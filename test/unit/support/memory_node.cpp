#include "test/unit/support/memory_node.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend/call/waiter.h"
#include "backend/wire/message_body.h"
#include "backend/wire/own_requests.h"
#include "test/unit/support/memory_worker.h"

namespace torchwire {

using std::chrono::milliseconds;

// ---- processes ----------------------------------------------------------------------------------

bool StandInProcesses::watch(Key key, const ProcessIdentity&, Ended ended) {
  MutexLock lock(mutex_);
  watched_[key] = std::move(ended);
  return true;
}

void StandInProcesses::forget(Key key) {
  take(key);
}

void StandInProcesses::look(Key key) {
  {
    MutexLock lock(mutex_);
    if (!replaced_[key]) {
      return;
    }
  }
  if (const Ended ended = take(key)) {
    ended("runs another program");
  }
}

bool StandInProcesses::watches(Key key) const {
  MutexLock lock(mutex_);
  return watched_.contains(key);
}

void StandInProcesses::end(Key key) {
  if (const Ended ended = take(key)) {
    ended("has ended");
  }
}

void StandInProcesses::replace(Key key) {
  MutexLock lock(mutex_);
  replaced_[key] = true;
}

Processes::Ended StandInProcesses::take(Key key) {
  MutexLock lock(mutex_);
  const auto watched = watched_.find(key);
  if (watched == watched_.end()) {
    return {};
  }
  Ended ended = std::move(watched->second);
  watched_.erase(watched);
  return ended;
}

// ---- the store ----------------------------------------------------------------------------------

namespace {

/// A worker's access to the store.
class StoreAccess final : public KeyValueStore {
  template <typename Operation>
  auto locked(Operation operation) {
    if (shared_.isGone) {
      throw std::runtime_error("the store is gone");
    }
    MutexLock lock(shared_.mutex);
    return operation(shared_.store);
  }

 public:
  explicit StoreAccess(SharedStore& shared) : shared_(shared) {}

  Value compareSet(const std::string& key, const Value& expected, const Value& wanted) override {
    return locked([&](LocalStore& store) { return store.compareSet(key, expected, wanted); });
  }
  Value get(const std::string& key) override {
    return locked([&](LocalStore& store) { return store.get(key); });
  }
  void set(const std::string& key, const Value& value) override {
    locked([&](LocalStore& store) { store.set(key, value); });
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return locked([&](LocalStore& store) { return store.add(key, amount); });
  }
  bool check(const std::string& key) override {
    return locked([&](LocalStore& store) { return store.check(key); });
  }

 private:
  SharedStore& shared_;
};

} // namespace

// ---- a node -------------------------------------------------------------------------------------

namespace {

std::string bodyText(ReceivedFrame frame) {
  const std::vector<char> body = bodyIn(std::move(frame));
  return {body.begin(), body.end()};
}

} // namespace

MemoryNode::MemoryNode(NodeWorld& world, WorkerId id, uint32_t worldSize)
    : world_(world),
      context_(world.network.context(recordOf(id).address)),
      membership_(
          std::make_unique<Membership>(
              std::make_unique<StoreAccess>(world.store), recordOf(id), worldSize,
              milliseconds(10000))),
      node_(
          settingsOf(id, worldSize != 0),
          {*this, timer_, trace_, [this](Task&& task) { return control_.run(std::move(task)); },
           [this](Task&& task) {
             return deathThread_.run([this, task = std::move(task)]() mutable {
               task();
               ++deathTasks_;
               world_.notifier.notify();
             });
           }}) {}

Node::Settings MemoryNode::settingsOf(WorkerId id, bool isStatic) {
  Node::Settings settings;
  settings.id = id;
  settings.name = recordOf(id).name;
  settings.isStatic = isStatic;
  settings.isOpen = !isStatic;
  settings.limits = quickLimits();
  return settings;
}

MemoryNode::~MemoryNode() {
  node_.close();
  timer_.stop();
  node_.calls().failAll(Error(ErrorCode::shutDown, "the test is over"));
  links().leave(milliseconds(0));
  context_.join();
  node_.calls().failAll(Error(ErrorCode::shutDown, "the test is over"));
  deathThread_.join();
  control_.join();
  context_.join(); // what these threads have dialed meanwhile
}

void MemoryNode::join() {
  membership_->agree({});
  node_.open(context_, processes_, *membership_);
  node_.begin(membership_->join(links().listen()));
}

std::string MemoryNode::call(
    const MemoryNode& callee, const std::string& text, milliseconds timeout) {
  const auto waiter = std::make_shared<Waiter>();
  const auto result = std::make_shared<std::string>();
  node_.requests().call(
      callee.record().id, {.timeout = timeout},
      bodyFrame(FrameKind::request, kCall, {text.begin(), text.end()}),
      [waiter, result](Outcome outcome) {
        *result = outcome.error ? outcome.error.message() : bodyText(std::move(outcome.response));
        waiter->give([] {});
      });
  waiter->await(nullptr);
  return *result;
}

void MemoryNode::setObjection(const std::string& objection) {
  MutexLock lock(mutex_);
  objection_ = objection;
}

PeerState MemoryNode::stateOf(const MemoryNode& peer) const {
  for (const PeerStatus& status : node_.links()->status()) {
    if (status.record.id == peer.record().id) {
      return status.state;
    }
  }
  throw std::logic_error(record().describe() + " knows no " + peer.record().describe());
}

std::vector<std::string> MemoryNode::heard() const {
  MutexLock lock(mutex_);
  return heard_;
}

bool MemoryNode::hasHeard(const std::string& words) const {
  const auto all = heard();
  return std::find(all.begin(), all.end(), words) != all.end();
}

std::vector<std::string> MemoryNode::deathsHeard() const {
  MutexLock lock(mutex_);
  return deaths_;
}

bool MemoryNode::awaitDeathTasks(int count) {
  return world_.notifier.waitUntil([&] { return deathTasks_ >= count; });
}

void MemoryNode::hear(std::string words) {
  {
    MutexLock lock(mutex_);
    heard_.push_back(std::move(words));
  }
  world_.notifier.notify();
}

// ---- its program --------------------------------------------------------------------------------

bool MemoryNode::serve(WorkerId caller, ReceivedFrame request) {
  if (serving_ == Serving::answers) {
    const uint64_t callId = request.header.callId;
    OutgoingFrame response =
        bodyFrame(FrameKind::response, own_requests::kObserved, bodyIn(std::move(request)));
    setCallId(response, callId);
    links().sendIfConnected(caller, std::move(response), [](const Error&) {});
  }
  return serving_ != Serving::refuses;
}

bool MemoryNode::serveOwn(Task&& task) {
  return control_.run(std::move(task));
}

void MemoryNode::dropResponse(WorkerId, ReceivedFrame response) {
  hear("late " + bodyText(std::move(response)));
}

void MemoryNode::requestUnsent(WorkerId to) {
  hear("unsent to " + nameOf(to));
}

void MemoryNode::await(Waiter& waiter) {
  waiter.await(nullptr);
}

std::optional<Refusal> MemoryNode::admit(const WorkerRecord&) {
  MutexLock lock(mutex_);
  return objection_.empty() ? std::nullopt : std::optional(Refusal{ErrorCode::refused, objection_});
}

void MemoryNode::peerJoined(const WorkerRecord& peer) {
  hear("joined " + peer.name);
}

void MemoryNode::peerLost(WorkerId peer, const Error&) {
  hear("lost " + nameOf(peer));
}

void MemoryNode::peerGone(const WorkerRecord& peer, const Error& error) {
  if (error.code() == ErrorCode::workerDied) {
    MutexLock lock(mutex_);
    deaths_.push_back(error.message());
  }
  hear("gone " + peer.name);
}

std::string MemoryNode::describe(WorkerId worker) const {
  return "worker '" + nameOf(worker) + "' (rank " + std::to_string(worker) + ")";
}

std::string MemoryNode::nameOf(WorkerId worker) const {
  return "w" + std::to_string(worker);
}

milliseconds MemoryNode::storeTimeout() const {
  return milliseconds(10000);
}

void meet(const std::vector<MemoryNode*>& nodes) {
  for (MemoryNode* const node : nodes) {
    for (const MemoryNode* const peer : nodes) {
      if (peer != node && !node->links().statusOf(peer->record().id)) {
        node->links().addPeer(peer->record());
        node->node().deaths().watch(peer->record());
      }
    }
  }
}

} // namespace torchwire
