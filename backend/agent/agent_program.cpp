// Agent: what runs on the node, and what PyTorch keeps of peers that come, are lost and go.
#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "backend/agent/agent.h"
#include "backend/agent/call_end.h"
#include "backend/agent/unread_result.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/base/random.h"
#include "backend/codec/codec.h"
#include "backend/serve/response.h"
#include "backend/serve/signals.h"
#include "backend/transport/loop.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMinStoreTimeout{2000};
constexpr milliseconds kMaxStoreTimeout{60000}; // where calls have no time-out

/// A process that comes in place of another one may get what that one's calls are answered with. It must not take it for
/// answers to its own.
uint64_t firstCallId(bool mayReplace) {
  return mayReplace ? randomNumber() >> 2 : 1;
}

} // namespace

Node::Settings Agent::nodeSettings() const {
  Node::Settings settings;
  settings.id = self_;
  settings.name = workerInfo_.name_;
  settings.isStatic = isStaticGroup();
  settings.isOpen = isOpen();
  settings.firstCallId = firstCallId(isOpen());
  settings.maxBytesInFlight = options_.maxBytesInFlight;
  settings.limits.sessionTimeout = options_.sessionTimeout;
  settings.limits.sessionBytes = options_.maxUnacknowledgedBytes;
  return settings;
}

// ---- requests and responses ---------------------------------------------------------------------

bool Agent::serve(WorkerId caller, ReceivedFrame request) {
  return server_->serve(caller, std::move(request));
}

bool Agent::serveOwn(Task&& task) {
  return runRequest(*pools_.control, [task = std::move(task)]() mutable {
    // As in Server::run: for an observer, Python's code runs.
    const at::ThreadLocalStateGuard restoredAfterwards{at::ThreadLocalState()};
    task();
  });
}

/// Its sender may have lent memory for it, and counts on this worker to say when it needs the RRefs in it no longer.
void Agent::dropResponse(WorkerId from, ReceivedFrame response) {
  log(LogLevel::debug,
      "dropped the late response to call " + std::to_string(response.header.callId));
  const bool ofDevices = !devices_->used().empty() && carriesTensors(response);
  // Of an answer that comes twice, as under injected faults, the RRefs are in use.
  const bool mayHaveRRefs = mayCarryRRefs(response.header.messageType) &&
      node_.calls().takeUnanswered(response.header.callId);
  if (!ofDevices && !mayHaveRRefs) {
    return;
  }
  activeCalls_.start(); // RRefs in it tell their owners, as those do of a call that has not ended
  const std::shared_ptr<void> counted(this, [this](void*) { activeCalls_.finish(); });
  pools_.control->run([this, from, counted, mayHaveRRefs,
                       response = std::move(response)]() mutable {
    guarded("a late response", [&] {
      const DecodedMessage decoded = decodeMessage(std::move(response));
      if (mayHaveRRefs) {
        pools_.endOn(
            pools_.completions, [counted, message = decoded.message] { dropRRefsIn(*message); });
      }
      transfers_->discard(from, std::as_const(*decoded.message).tensors(), decoded.targets);
    });
  });
}

void Agent::requestUnsent(WorkerId to) {
  transfers_->peerLost(to); // no tickets in it will be heard of
}

void Agent::await(Waiter& waiter) {
  waiter.await(loop_.get(), handlesSignals() ? checkSignals : std::function<void()>());
}

// ---- peers --------------------------------------------------------------------------------------

std::optional<Refusal> Agent::admit(const WorkerRecord& worker) {
  if (auto objection = objectionToName(worker.name)) {
    return Refusal{ErrorCode::refused, *objection};
  }
  try {
    if (auto objection = devices_->objectionTo(worker)) {
      return Refusal{ErrorCode::refused, *objection};
    }
    devices_->add({worker});
  } catch (const FormatError& e) {
    return Refusal{ErrorCode::refused, e.what()};
  }
  directory_.add(worker);
  rrefs_->forgetWorker(worker.id);
  pools_.control->run(contexts_.peerJoined(worker.id));
  return std::nullopt;
}

void Agent::peerJoined(const WorkerRecord& peer) {
  options_.workerEvents.joined(peer);
}

void Agent::peerLost(WorkerId peer, const Error& error) {
  if (error.code() == ErrorCode::peerLeft && !isStaticGroup()) {
    directory_.remove(peer, error.message());
    devices_->remove(peer);
  }
  transfers_->peerLost(peer);
  transfers_->endLanes(peer, error.message());
  if (peer != self_) {
    runCallbacks(server_->callerLost(peer));
    pools_.control->run([engine = engine_, peer] { engine->peerLost(peer); });
  }
}

/// A peer whose link has merely broken, or that cannot be dialed, is not gone: from here a network that is cut looks like a
/// process that has died, and a worker that comes back goes on with its contexts.
void Agent::peerGone(const WorkerRecord& peer, const Error& error) {
  const bool left = error.code() == ErrorCode::peerLeft;
  guarded("the end of a peer", [&] {
    // Else all have deleted what they held by then, and PyTorch is to find what they have not.
    if (!left || !end_->isJoining()) {
      rrefs_->workerGone(peer.id, error);
    }
    contexts_.peerGone(peer.id)(); // nobody else would release what it has opened
    if (error.code() == ErrorCode::workerDied && isOpen()) {
      devices_->remove(peer.id);
    }
  });
  if (!left || !isStaticGroup()) {
    options_.workerEvents.lost(peer, error);
  }
}

/// What functions want to have run when nobody waits for them any more.
void Agent::runCallbacks(CancelledCalls::Tasks callbacks) {
  for (Task& callback : callbacks) {
    Task task([callback = std::move(callback)]() mutable {
      const at::ThreadLocalStateGuard restoredAfterwards{freshState()}; // as in complete()
      callback();
    });
    if (!pools_.completions.run(std::move(task)) && !pools_.requests.run(std::move(task))) {
      disposer_.keep(std::move(task)); // this worker shuts down
    }
  }
}

std::string Agent::describe(WorkerId worker) const {
  return directory_.describe(worker);
}

std::string Agent::nameOf(WorkerId worker) const {
  return directory_.nameOf(worker);
}

/// Three such waits are no longer than a call: for the rendezvous store, and twice for a worker that hosts that and stands
/// still. On a busy machine it may be longer than short calls are to take.
milliseconds Agent::storeTimeout() const {
  const milliseconds timeout = getRpcTimeout();
  return timeout.count() == 0 ? kMaxStoreTimeout : std::max(timeout / 3, kMinStoreTimeout);
}

} // namespace torchwire
