#include "backend/membership/peer_stores.h"

#include <utility>

#include "backend/base/bytes.h"

namespace torchwire {
namespace {

using Operation = StoreRequest::Operation;

std::vector<char> comeOverTo(const StorePlace& place, const std::string& why) {
  StoreRequest request;
  request.operation = Operation::comeOver;
  request.place = place;
  request.key = why;
  return request.encode();
}

} // namespace

PeerStores::PeerStores(WorkerId self, Links links) : self_(self), links_(std::move(links)) {}

StorePlace PeerStores::place() const {
  MutexLock lock(mutex_);
  return place_;
}

std::string PeerStores::reason() const {
  MutexLock lock(mutex_);
  return reason_;
}

std::vector<char> PeerStores::serve(WorkerId caller, const std::vector<char>& bytes) {
  const StoreRequest request = StoreRequest::decode(bytes);
  const std::string why = links_.describe(caller) + " could not reach it";
  if (request.operation == Operation::comeOver) {
    comeOver(request.place, request.key);
  } else if (request.place.server != self_) {
    throw FormatError("this worker does not serve the store of another");
  } else {
    comeOver(request.place, why);
  }
  return operate(caller, request).encode();
}

StoreAnswer PeerStores::perform(const StoreRequest& request) {
  StoreAnswer answer;
  if (request.place.server == self_) {
    answer = operate(self_, request);
  } else {
    try {
      answer = StoreAnswer::decode(links_.ask(request.place.server, request.encode()));
    } catch (const std::exception& e) { // it has died or left, or does not answer
      {
        MutexLock lock(mutex_);
        silent_.try_emplace(request.place.server);
      }
      moveOn(request.place, e.what());
      throw StoreMoved();
    }
  }
  if (answer.place != request.place) {
    comeOver(answer.place, "");
    throw StoreMoved();
  }
  return answer;
}

void PeerStores::moveOn(const StorePlace& from, const std::string& why) {
  const StorePlace next = after(from);
  {
    MutexLock lock(mutex_);
    if (place_ != from) {
      return; // another thread has come over already
    }
  }
  comeOver(next, why);
}

StorePlace PeerStores::after(const StorePlace& from) const {
  std::set<WorkerId> servers = links_.living();
  servers.insert(self_);
  const auto next = servers.upper_bound(from.server);
  return next != servers.end() ? StorePlace{from.lap, *next}
                               : StorePlace{from.lap + 1, *servers.begin()};
}

void PeerStores::comeOver(const StorePlace& to, const std::string& why) {
  std::string reason;
  {
    MutexLock lock(mutex_);
    if (to <= place_) {
      return;
    }
    place_ = to;
    if (reason_.empty()) {
      reason_ = why.substr(0, why.find('\n')); // PyTorch's errors append a stack trace
    }
    reason = reason_;
    callers_.clear();
    store_.clear();
    if (to.server != self_) {
      return;
    }
    for (const auto& [key, value] : kept_) {
      store_.set(key, value);
    }
  }
  for (const WorkerId peer : links_.living()) {
    links_.tell(peer, comeOverTo(to, reason));
  }
}

void PeerStores::expectAnswers(Clock& clock, std::chrono::nanoseconds patience) {
  std::map<WorkerId, std::optional<Clock::TimePoint>> silent;
  {
    MutexLock lock(mutex_);
    silent.swap(silent_);
  }
  for (auto& [worker, since] : silent) {
    since = since.value_or(clock.now());
    try {
      if (links_.living().contains(worker)) {
        links_.ask(worker, comeOverTo(place(), reason()));
      }
    } catch (const std::exception& e) {
      // One that has died may not be known for it yet.
      if (patience.count() != 0 && clock.now() - *since >= patience) {
        throw std::runtime_error(
            "the RPC group cannot shut down gracefully: " + links_.describe(worker) +
            " does not answer: " + e.what());
      }
      MutexLock lock(mutex_);
      silent_.emplace(worker, since);
    }
  }
}

void PeerStores::remind() {
  StorePlace place;
  std::string reason;
  std::set<WorkerId> callers;
  {
    MutexLock lock(mutex_);
    place = place_;
    reason = reason_;
    callers = callers_;
  }
  if (place.server != self_) {
    return;
  }
  for (const WorkerId peer : links_.living()) {
    if (!callers.contains(peer)) {
      links_.tell(peer, comeOverTo(place, reason));
    }
  }
}

StoreAnswer PeerStores::operate(WorkerId caller, const StoreRequest& request) {
  MutexLock lock(mutex_);
  if (request.operation == Operation::comeOver || request.place != place_) {
    return {place_, {}, 0};
  }
  callers_.insert(caller);
  return operate(request);
}

StoreAnswer PeerStores::operate(const StoreRequest& request) {
  StoreAnswer answer{place_, {}, 0};
  switch (request.operation) {
    case Operation::compareSet:
      answer.value = store_.compareSet(request.key, request.expected, request.value);
      break;
    case Operation::get:
      answer.value = store_.get(request.key);
      break;
    case Operation::set:
      store_.set(request.key, request.value);
      break;
    case Operation::add:
      answer.number = store_.add(request.key, request.amount);
      break;
    case Operation::check:
      answer.number = store_.check(request.key) ? 1 : 0;
      break;
    case Operation::comeOver:
      break;
  }
  return answer;
}

void PeerStores::keep(const std::string& key, const Value& value) {
  MutexLock lock(mutex_);
  kept_[key] = value;
}

std::map<std::string, PeerStores::Value> PeerStores::kept() const {
  MutexLock lock(mutex_);
  return kept_;
}

} // namespace torchwire
