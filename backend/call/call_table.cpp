#include "backend/call/call_table.h"

#include <algorithm>
#include <functional>
#include <string>

namespace torchwire {
namespace {

constexpr size_t kSpareDeadlines = 1024;

} // namespace

Error timeoutError(std::chrono::milliseconds timeout, bool sent) {
  return Error(
      sent ? ErrorCode::timeout : ErrorCode::overloaded,
      "RPC ran for more than set timeout (" + std::to_string(timeout.count()) +
          " ms) and will now be marked with an error" +
          (sent
               ? ""
               : "; its request has not been sent, for as many bytes as max_bytes_in_flight allows "
                 "were under way to the worker"),
      sent ? Executed::unknown : Executed::no);
}

uint64_t CallTable::open(
    WorkerId to, std::chrono::milliseconds timeout, Completion completion, bool tracked,
    bool limited) {
  MutexLock lock(mutex_);
  const uint64_t id = nextId_++;
  calls_.emplace(id, Call{to, timeout, std::move(completion), nullptr, tracked, limited});
  if (timeout.count() > 0) {
    addDeadline({timer_.now() + timeout, id});
  }
  return id;
}

bool CallTable::await(uint64_t id, std::shared_ptr<Waiter> waiter) {
  MutexLock lock(mutex_);
  const auto it = calls_.find(id);
  if (it == calls_.end() || it->second.waiter) {
    return false;
  }
  it->second.waiter = std::move(waiter);
  return true;
}

bool CallTable::answer(uint64_t id, WorkerId from, ReceivedFrame&& response) {
  std::optional<Call> call = take(id, from);
  if (call) {
    call->end(Error(), std::move(response));
  }
  return call.has_value();
}

/// Nullopt if there is no such call, to this worker where that is given.
std::optional<CallTable::Call> CallTable::take(uint64_t id, std::optional<WorkerId> from) {
  std::optional<Call> call;
  {
    MutexLock lock(mutex_);
    const auto it = calls_.find(id);
    if (it == calls_.end() || (from && it->second.to != *from)) {
      return std::nullopt;
    }
    call.emplace(std::move(it->second));
    calls_.erase(it);
  }
  if (call->tracked) {
    trackedEnded_({{call->to, id}});
  }
  return call;
}

/// Those whose request has not been sent.
std::unordered_set<uint64_t> CallTable::noteEnds(const EndedCalls& calls) const {
  std::vector<Key> tracked;
  for (const auto& [id, call] : calls) {
    if (call.tracked) {
      tracked.push_back({call.to, id});
    }
  }
  std::unordered_set<uint64_t> unsent;
  if (!tracked.empty()) {
    for (const Key& call : trackedEnded_(tracked)) {
      unsent.insert(call.id);
    }
  }
  return unsent;
}

bool CallTable::contains(uint64_t id) const {
  MutexLock lock(mutex_);
  return calls_.contains(id);
}

bool CallTable::fail(uint64_t id, const Error& error) {
  std::optional<Call> call = take(id);
  if (call) {
    call->end(error);
  }
  return call.has_value();
}

CallTable::GivenUp CallTable::giveUp(uint64_t id, const Error& error) {
  EndedCalls ended;
  {
    MutexLock lock(mutex_);
    const auto it = calls_.find(id);
    if (it == calls_.end()) {
      return {};
    }
    ended.emplace_back(id, std::move(it->second));
    calls_.erase(it);
  }
  const bool sent = noteEnds(ended).empty();
  Call& call = ended.front().second;
  call.end(sent ? error : error.notSent());
  return {true, sent ? std::optional(call.to) : std::nullopt};
}

bool CallTable::withdraw(uint64_t id) {
  return take(id).has_value();
}

template <typename Predicate>
void CallTable::failWhere(
    Predicate matches, const Error& error, const std::unordered_set<uint64_t>& received) {
  EndedCalls ended;
  {
    MutexLock lock(mutex_);
    for (auto it = calls_.begin(); it != calls_.end();) {
      if (matches(it->second)) {
        ended.emplace_back(it->first, std::move(it->second));
        it = calls_.erase(it);
      } else {
        ++it;
      }
    }
  }
  const auto unsent = noteEnds(ended);
  for (auto& [id, call] : ended) {
    call.end(
        unsent.contains(id)         ? error.notSent()
            : received.contains(id) ? error.onlyAnswerLost()
                                    : error);
  }
}

void CallTable::failPeer(
    WorkerId to, const Error& error, const std::unordered_set<uint64_t>& received) {
  failWhere([to](const Call& call) { return call.to == to; }, error, received);
}

void CallTable::failAll(const Error& error) {
  failWhere([](const Call&) { return true; }, error);
}

size_t CallTable::size() const {
  MutexLock lock(mutex_);
  return calls_.size();
}

void CallTable::addDeadline(Deadline deadline) {
  if (deadlines_.size() > 2 * calls_.size() + kSpareDeadlines) {
    std::erase_if(
        deadlines_, [&](const Deadline& d) REQUIRES(mutex_) { return !calls_.contains(d.id); });
    std::make_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  }
  deadlines_.push_back(deadline);
  std::push_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  arm();
}

void CallTable::arm() {
  // A wake-up that is already set for an earlier time will look again: calls with the same time-out
  // come in order of their deadlines, so the timer thread is hardly ever woken by a new call.
  if (deadlines_.empty() || deadlines_.front().when >= armedFor_) {
    return;
  }
  armedFor_ = deadlines_.front().when;
  timer_.at(armedFor_, [this] { expire(); });
}

void CallTable::expire() {
  EndedCalls expired;
  {
    MutexLock lock(mutex_);
    const auto now = timer_.now();
    armedFor_ = Timer::Clock::time_point::max();
    while (!deadlines_.empty()) {
      const auto it = calls_.find(deadlines_.front().id);
      const bool pending = it != calls_.end();
      if (pending && deadlines_.front().when > now) {
        break;
      }
      if (pending) {
        expired.emplace_back(it->first, std::move(it->second));
        calls_.erase(it);
      }
      std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
      deadlines_.pop_back();
    }
    arm();
  }
  const auto unsent = noteEnds(expired);
  for (auto& [id, call] : expired) {
    const bool sent = !unsent.contains(id);
    call.end(timeoutError(call.timeout, sent));
    if (call.limited && sent) {
      limitedExpired_({call.to, id});
    }
  }
}

} // namespace torchwire
