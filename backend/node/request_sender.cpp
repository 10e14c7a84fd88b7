#include "backend/node/request_sender.h"

#include <exception>
#include <string>
#include <utility>

#include "backend/base/thread_pool.h"
#include "backend/base/thread_role.h"

namespace torchwire {
namespace {

// What is smaller does not count as being under way: it costs its call more to count it than it costs the receiver.
constexpr size_t kMinCounted = 4096;

// A call that its thread is sending. What fails it meanwhile, on this thread, waits until the links have been left.
class Sending {
 public:
  explicit Sending(uint64_t id) : callId(id), outer_(std::exchange(current, this)) {}
  ~Sending() {
    current = outer_;
  }
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

  static thread_local Sending* current;
  const uint64_t callId;
  Error failed;

 private:
  Sending* const outer_;
};
thread_local Sending* Sending::current = nullptr;

} // namespace

RequestSender::RequestSender(Worker worker) : worker_(std::move(worker)) {
  if (worker_.maxBytesInFlight == 0) {
    return;
  }
  window_ = std::make_unique<SendWindow>(
      worker_.maxBytesInFlight, [this](WorkerId to, uint64_t callId, OutgoingFrame request) {
        sendNow(to, callId, std::move(request));
      });
  worker_.calls.whenTrackedEnd(
      [this](const std::vector<CallTable::Key>& calls) { return window_->ended(calls); });
}

// Not what a handler or a callback sends: the call that would make room may be the one that waits for it.
bool RequestSender::isCounted(size_t requestBytes) const {
  return window_ && !ThreadPool::isRunningTask() && requestBytes >= kMinCounted;
}

uint64_t RequestSender::call(
    WorkerId to, CallTable::Options options, OutgoingFrame request,
    CallTable::Completion completion) {
  const Begun begun = begin(to, std::move(options), std::move(request), std::move(completion));
  if (begun.failed) {
    worker_.calls.fail(begun.callId, begun.failed);
  }
  return begun.callId;
}

RequestSender::Begun RequestSender::begin(
    WorkerId to, CallTable::Options options, OutgoingFrame request,
    CallTable::Completion completion) {
  const bool counted = options.tracked;
  const uint64_t callId = worker_.calls.open(to, std::move(options), std::move(completion));
  setCallId(request, callId);
  return {callId, send(to, callId, std::move(request), counted)};
}

Error RequestSender::send(WorkerId to, uint64_t callId, OutgoingFrame request, bool counted) {
  const SendScope
      scope; // libtorch or Python may call with locks held: nothing of theirs may be waited for in here
  Sending now(callId);
  if (counted) {
    window_->send(to, callId, std::move(request));
    if (!worker_.calls.contains(callId)) { // ended before the window knew of it
      window_->ended({{to, callId}});
    }
  } else {
    sendNow(to, callId, std::move(request));
  }
  return now.failed;
}

void RequestSender::sendNow(WorkerId to, uint64_t callId, OutgoingFrame request) {
  const SendScope scope; // also where the end of another call has made room
  try {
    worker_.send(to, std::move(request), [this, to, callId](const Error& error) {
      // Where the call has ended before, its peer was lost, which was told; later calls may be under way.
      if (error && fail(callId, error)) {
        worker_.unsent(to);
      }
    });
  } catch (const std::exception& e) { // no memory, for one
    worker_.unsent(to);
    fail(
        callId,
        Error(ErrorCode::linkBroken, std::string("the request cannot be sent: ") + e.what()));
  }
}

/// False where the call has ended before.
bool RequestSender::fail(uint64_t callId, const Error& error) {
  Sending* const now = Sending::current;
  if (now != nullptr && now->callId == callId) {
    now->failed = error;
    return true;
  }
  return worker_.calls.fail(callId, error);
}

} // namespace torchwire
