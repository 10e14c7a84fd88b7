#include "backend/call/call_table.h"

#include <pthread.h>

#include <algorithm>
#include <functional>
#include <string>

namespace torchwire {
namespace {

using std::chrono::milliseconds;
using TimePoint = Timer::Clock::time_point;

constexpr size_t kSpareDeadlines = 1024;

// Looking after calls goes through all of them.
constexpr milliseconds kBetweenLooks{100};
// Who has less time than this is not asked where its call is: the answer would come too late too often.
constexpr milliseconds kLeastTimeout{1000};

// When who waits is about to be told that the time is over.
milliseconds nearEnd(milliseconds timeout) {
  return timeout * 3 / 4;
}

} // namespace

Error timeoutError(milliseconds timeout, bool sent, const std::string& whereabouts) {
  return Error(
      sent ? ErrorCode::timeout : ErrorCode::overloaded,
      "RPC ran for more than set timeout (" + std::to_string(timeout.count()) +
          " ms) and will now be marked with an error" +
          (sent
               ? ""
               : "; its request has not been sent, for as many bytes as max_bytes_in_flight allows "
                 "were under way to the worker") +
          (sent && !whereabouts.empty() ? "; " + whereabouts : ""),
      sent ? Executed::unknown : Executed::no);
}

uint64_t CallTable::open(WorkerId to, Options options, Completion completion) {
  Call call;
  call.to = to;
  call.options = std::move(options);
  call.completion = std::move(completion);
  call.thread = static_cast<uint64_t>(pthread_self());
  call.begun = timer_.now();
  call.nextLook = nextLookAt(call, call.begun);
  if (trace_ != nullptr && trace_->isOn()) {
    call.making = TraceLog::Making::begunOr(call.begun);
  }
  const bool hasDeadline = call.options.timeout.count() > 0;
  const TimePoint deadline = call.begun + call.options.timeout;
  const TimePoint nextLook = call.nextLook;
  MutexLock lock(mutex_);
  const uint64_t id = nextId_++;
  calls_.emplace(id, std::move(call));
  if (hasDeadline) {
    addDeadline({deadline, id});
  }
  lookLater(nextLook);
  return id;
}

/// Once the call is out of the table, and unlocked.
void CallTable::end(uint64_t id, Call& call, Error error, ReceivedFrame response) {
  note(id, call, error.code(), response.header.served);
  call.options.undo.unlessSent(error);
  call.completion({std::move(error), std::move(response), std::move(call.waiter)});
}

void CallTable::note(
    uint64_t id, const Call& call, ErrorCode error, std::chrono::nanoseconds served) {
  FunctionMetrics* const function = call.options.function;
  if (function == nullptr) {
    return;
  }
  const TimePoint now = timer_.now();
  function->latency.add(now - call.begun);
  if (error != ErrorCode::none) {
    function->failed(error);
  } else {
    function->wire.add(now - call.begun - served);
  }
  if (trace_ != nullptr && trace_->isOn()) {
    trace_->add(
        {TraceLog::Kind::caller, call.to, id, function->id, call.making, call.begun, now, served,
         error, call.thread});
  }
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
    end(id, *call, Error(), std::move(response));
  }
  return call.has_value();
}

std::optional<Undo> CallTable::takeUnanswered(uint64_t id) {
  MutexLock lock(mutex_);
  return unanswered_.take(id);
}

/// For its end otherwise than by its answer.
void CallTable::takeOut(Calls::iterator call, EndedCalls& ended) {
  unanswered_.add(call->first, call->second.options.undo);
  ended.emplace_back(call->first, std::move(call->second));
  calls_.erase(call);
}

/// Nullopt if there is no such call, to the worker whose answer has come where that is given.
std::optional<CallTable::Call> CallTable::take(uint64_t id, std::optional<WorkerId> answerOf) {
  std::optional<Call> call;
  {
    MutexLock lock(mutex_);
    const auto it = calls_.find(id);
    if (it == calls_.end() || (answerOf && it->second.to != *answerOf)) {
      return std::nullopt;
    }
    if (!answerOf) {
      unanswered_.add(id, it->second.options.undo);
    }
    call.emplace(std::move(it->second));
    calls_.erase(it);
  }
  if (call->options.tracked) {
    trackedEnded_({{call->to, id}});
  }
  return call;
}

/// Those whose request has not been sent.
std::unordered_set<uint64_t> CallTable::noteEnds(const EndedCalls& calls) const {
  std::vector<Key> tracked;
  for (const auto& [id, call] : calls) {
    if (call.options.tracked) {
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

bool CallTable::fail(uint64_t id, const Error& error, std::optional<WorkerId> answerOf) {
  std::optional<Call> call = take(id, answerOf);
  if (call) {
    end(id, *call, error);
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
    takeOut(it, ended);
  }
  const bool sent = noteEnds(ended).empty();
  Call& call = ended.front().second;
  end(id, call, sent ? error : error.notSent());
  return {true, sent ? std::optional(call.to) : std::nullopt};
}

bool CallTable::withdraw(uint64_t id, ErrorCode error) {
  const std::optional<Call> call = take(id);
  if (call) {
    note(id, *call, error, std::chrono::nanoseconds(0));
  }
  return call.has_value();
}

template <typename Predicate>
CallTable::EndedCalls CallTable::takeWhere(Predicate matches) {
  EndedCalls ended;
  MutexLock lock(mutex_);
  for (auto it = calls_.begin(); it != calls_.end();) {
    const auto call = it++;
    if (matches(call->second)) {
      takeOut(call, ended);
    }
  }
  return ended;
}

Task CallTable::takePeer(
    WorkerId to, const Error& error, const std::unordered_set<uint64_t>& received,
    const std::unordered_set<uint64_t>& unsent) {
  EndedCalls ended = takeWhere([to](const Call& call) { return call.to == to; });
  const auto trackedUnsent = noteEnds(ended);
  std::vector<Error> errors;
  errors.reserve(ended.size());
  for (const auto& [id, call] : ended) {
    errors.push_back(
        unsent.contains(id) || trackedUnsent.contains(id) ? error.notSent()
            : received.contains(id)                       ? error.onlyAnswerLost()
                                                          : error);
  }
  return [this, ended = std::move(ended), errors = std::move(errors)]() mutable {
    for (size_t i = 0; i < ended.size(); ++i) {
      end(ended[i].first, ended[i].second, std::move(errors[i]));
    }
  };
}

void CallTable::failAll(const Error& error) {
  EndedCalls ended = takeWhere([](const Call&) { return true; });
  const auto unsent = noteEnds(ended);
  for (auto& [id, call] : ended) {
    end(id, call, unsent.contains(id) ? error.notSent() : error);
  }
}

// ---- calls that take long -----------------------------------------------------------------------

/// When somebody is to look after the call next, from now on: max where nobody is.
TimePoint CallTable::nextLookAt(const Call& call, TimePoint now) const {
  TimePoint next = TimePoint::max();
  if (!slow_ || call.options.function == nullptr) {
    return next;
  }
  for (const milliseconds age :
       {slowAfter_,
        call.options.timeout >= kLeastTimeout ? nearEnd(call.options.timeout) : milliseconds(0)}) {
    const TimePoint when = call.begun + age;
    if (age.count() > 0 && when > now) {
      next = std::min(next, when);
    }
  }
  return next;
}

// As with deadlines: what comes later finds an earlier look set, as a rule.
void CallTable::lookLater(TimePoint when) {
  if (when < lookAt_) {
    lookAt_ = when;
    timer_.at(when, [this] { look(); });
  }
}

void CallTable::look() {
  std::vector<Pending> slow;
  {
    MutexLock lock(mutex_);
    const TimePoint now = timer_.now();
    if (now < lookAt_) {
      return; // an earlier one has taken its place
    }
    lookAt_ = TimePoint::max();
    TimePoint next = TimePoint::max();
    for (auto& [id, call] : calls_) {
      if (call.nextLook <= now) {
        slow.push_back(pendingOf(id, call, now));
        const bool isSlow = slowAfter_.count() > 0 && slow.back().age >= slowAfter_;
        slow.back().isNewlySlow = isSlow && !std::exchange(call.foundSlow, true);
        call.nextLook = nextLookAt(call, now);
      }
      next = std::min(next, call.nextLook);
    }
    if (next != TimePoint::max()) {
      lookLater(std::max(next, now + kBetweenLooks));
    }
  }
  if (!slow.empty()) {
    slow_(std::move(slow));
  }
}

void CallTable::noteWhereabouts(uint64_t id, std::string whereabouts) {
  MutexLock lock(mutex_);
  const auto it = calls_.find(id);
  if (it != calls_.end()) {
    it->second.whereabouts = std::move(whereabouts);
  }
}

CallTable::Pending CallTable::pendingOf(uint64_t id, const Call& call, TimePoint now) {
  return {{call.to, id},    call.options.function, call.thread,
          now - call.begun, call.options.timeout,  call.whereabouts};
}

std::vector<CallTable::Pending> CallTable::pending() const {
  std::vector<Pending> pending;
  {
    MutexLock lock(mutex_);
    const TimePoint now = timer_.now();
    for (const auto& [id, call] : calls_) {
      if (call.options.function != nullptr) {
        pending.push_back(pendingOf(id, call, now));
      }
    }
  }
  std::sort(pending.begin(), pending.end(), [](const Pending& one, const Pending& other) {
    return one.age > other.age;
  });
  return pending;
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
        takeOut(it, expired);
      }
      std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
      deadlines_.pop_back();
    }
    arm();
  }
  const auto unsent = noteEnds(expired);
  for (auto& [id, call] : expired) {
    const bool sent = !unsent.contains(id);
    end(id, call, timeoutError(call.options.timeout, sent, call.whereabouts));
    if (call.options.limited && sent) {
      limitedExpired_({call.to, id});
    }
  }
}

} // namespace torchwire
