#include "autograd/pass/pass.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

namespace torchwire {
namespace {

// How often a pass looks whether threads that are not its own (devices') have finished. libtorch tells only when a
// whole evaluation is complete, and one that waits for more gradients is not.
constexpr std::chrono::milliseconds kBusyInterval{1};

} // namespace

Pass::Pass(
    const PassId& id, const PassOptions& options, std::unique_ptr<LocalGraph> graph,
    PassNetwork& network, std::function<void(const Error&)> over)
    : id_(id),
      options_(options),
      graph_(std::move(graph)),
      network_(network),
      onOver_(std::move(over)) {
  const auto sends = graph_->sends();
  waiting_.insert(sends.begin(), sends.end());
}

size_t Pass::waiting() const {
  MutexLock lock(mutex_);
  return waiting_.size();
}

bool Pass::resting() const {
  MutexLock lock(mutex_);
  return active_ == 0;
}

// ---- what sets it in motion ---------------------------------------------------------------------

void Pass::prepare(RootEvents events) {
  Error error;
  {
    MutexLock lock(mutex_);
    ++active_; // until run() has done its part
    if (!over_) {
      events_ = std::move(events);
      return;
    }
    error = error_;
  }
  events.failed(error);
}

void Pass::run() {
  {
    MutexLock lock(mutex_);
    if (over_) {
      return;
    }
  }
  graph_->evaluateRoots();
  onEvaluated();
}

void Pass::onGradients(int64_t send, const LocalGraph::Attach& attach, Reply reply) {
  {
    MutexLock lock(mutex_);
    if (delivered_.count(send) != 0) {
      // The link has delivered the request twice. Two answers to one call would be one too many, and if this one
      // came first, the sender would take this worker for idle.
      return;
    }
    if (over_ || waiting_.erase(send) == 0) {
      const Error error = error_
          ? error_
          : Error(
                ErrorCode::raised,
                "no send function with message id " + std::to_string(send) +
                    " waits for gradients on " + network_.describe(network_.self()));
      lock.unlock();
      reply(error, {});
      return;
    }
    delivered_.insert(send);
    ++active_;
    if (!woken_ && !events_.idle) {
      woken_ = std::move(reply);
      reply = nullptr;
    }
  }
  if (reply) {
    reply({}, {});
  }
  graph_->evaluate(send, attach);
  onEvaluated();
}

void Pass::resume(const std::set<int64_t>& reached, Reply reply) {
  {
    MutexLock lock(mutex_);
    if (over_) { // it had got all that it waited for, or has failed, of which others have been told
      lock.unlock();
      reply({}, {});
      return;
    }
    ++active_;
    if (!woken_) {
      woken_ = std::move(reply);
      reply = nullptr;
    }
  }
  if (reply) { // gradients from a worker that was resumed earlier have come before this
    reply({}, {});
  }
  dropAllBut(reached);
  onEvaluated();
}

void Pass::resumeRoot(const std::set<int64_t>& reached) {
  {
    MutexLock lock(mutex_);
    ++active_;
  }
  dropAllBut(reached);
  onEvaluated();
}

void Pass::expectOnly(const std::set<int64_t>& reached) {
  if (const auto unreached = takeUnreached(reached); !unreached.empty()) {
    graph_->leaveOut(unreached);
  }
}

void Pass::dropAllBut(const std::set<int64_t>& reached) {
  if (const auto unreached = takeUnreached(reached); !unreached.empty()) {
    graph_->drop(unreached);
  }
}

std::vector<int64_t> Pass::takeUnreached(const std::set<int64_t>& reached) {
  std::vector<int64_t> unreached;
  MutexLock lock(mutex_);
  std::set_difference(
      waiting_.begin(), waiting_.end(), reached.begin(), reached.end(),
      std::back_inserter(unreached));
  std::erase_if(waiting_, [&](int64_t send) { return reached.count(send) == 0; });
  return unreached;
}

// ---- what it waits for --------------------------------------------------------------------------

void Pass::noteSent() {
  MutexLock lock(mutex_);
  ++active_;
}

void Pass::onResponse(const Error& error, const Report& report) {
  {
    MutexLock lock(mutex_);
    below_ += report.waiting;
  }
  if (error) {
    fail(error);
  }
  settle();
}

void Pass::onEvaluated() {
  if (const auto error = graph_->error()) {
    fail(Error(ErrorCode::raised, *error));
  }
  settle();
}

void Pass::fail(const Error& error) {
  std::function<void(const Error&)> tellRoot;
  {
    MutexLock lock(mutex_);
    if (over_ || error_) {
      return;
    }
    error_ = error;
    tellRoot = events_.failed;
  }
  graph_->stop();
  if (tellRoot) {
    tellRoot(error);
  }
}

void Pass::settle(bool handedOver) {
  std::function<void()> next;
  {
    MutexLock lock(mutex_);
    if (--active_ > 0 || over_) {
      return;
    }
    if (graph_->busy()) {
      ++active_;
      next = [self = shared_from_this()] { self->lookAgain(); };
    } else if (graph_->failedElsewhere()) {
      ++active_;
      next = [self = shared_from_this()] { self->onEvaluated(); };
    } else if (!handedOver) {
      ++active_;
      next = [self = shared_from_this()] { self->handOver(); };
    } else {
      next = events_.idle ? restAtRoot() : rest();
    }
  }
  next();
}

void Pass::handOver() {
  try {
    graph_->handOverGradients();
  } catch (const std::exception& e) {
    fail(Error(ErrorCode::raised, std::string("the gradients cannot be handed over: ") + e.what()));
  }
  settle(/*handedOver=*/true);
}

void Pass::lookAgain() {
  // Nothing of it stays behind on the timer's thread: what a pass holds of the graph must not go there.
  network_.later(kBusyInterval, [self = shared_from_this()]() mutable {
    PassNetwork& network = self->network_;
    network.soon([self = std::move(self)] { self->onEvaluated(); });
  });
}

std::function<void()> Pass::restAtRoot() {
  if (error_) {
    return [] {}; // of which the root has heard
  }
  const int64_t total = static_cast<int64_t>(waiting_.size()) + below_;
  return [idle = events_.idle, total] { idle(total); };
}

std::function<void()> Pass::rest() {
  const auto waiting = static_cast<int64_t>(waiting_.size());
  const Report report{waiting - reported_ + below_};
  reported_ = waiting;
  below_ = 0;
  over_ = error_ || waiting_.empty();
  return [self = shared_from_this(), reply = std::exchange(woken_, nullptr), over = over_,
          error = error_, report] {
    if (over) {
      self->end(error); // first: once the root hears of it, the next pass may start
    }
    reply(error, report);
  };
}

// ---- ending -------------------------------------------------------------------------------------

std::vector<WaitingSend> Pass::abort(const Error& error) {
  Reply reply;
  std::set<int64_t> waiting;
  RootEvents events;
  Error reason;
  {
    MutexLock lock(mutex_);
    if (over_) {
      return {};
    }
    over_ = true;
    if (!error_) {
      error_ = error;
    }
    reason = error_;
    reply = std::exchange(woken_, nullptr);
    waiting = waiting_;
    events = std::exchange(events_, {});
  }
  graph_->stop();
  auto described = describeWaiting(waiting);
  end(reason);
  if (reply) {
    reply(reason, {});
  }
  if (events.failed) {
    events.failed(reason);
  }
  return described;
}

void Pass::finish() {
  {
    MutexLock lock(mutex_);
    if (over_) {
      return;
    }
    over_ = true;
    events_ = {};
  }
  end({});
}

std::vector<WaitingSend> Pass::describeWaiting(const std::set<int64_t>& sends) const {
  std::vector<WaitingSend> described;
  for (const int64_t send : sends) {
    described.push_back({network_.self(), send, graph_->functionBehind(send)});
  }
  return described;
}

void Pass::end(const Error& error) {
  graph_->close();
  onOver_(error);
}

} // namespace torchwire
