#include "backend/agent/node_program.h"

#include <ATen/ThreadLocalState.h>

#include <memory>
#include <utility>

#include "backend/agent/call_end.h"
#include "backend/agent/unread_result.h"
#include "backend/base/bytes.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/codec/codec.h"
#include "backend/serve/response.h"
#include "backend/serve/signals.h"
#include "backend/transport/loop.h"
#include "backend/wire/own_requests.h"

namespace torchwire {

// ---- requests and responses ---------------------------------------------------------------------

void NodeProgram::serveCancels() {
  parts_.node.ownCalls().handle(
      own_requests::kCancel,
      [this](WorkerId caller, const OwnCalls::Body& request, const OwnCalls::Reply& reply) {
        runCallbacks(parts_.server->cancel(caller, ByteReader(request).number<uint64_t>()));
        reply({});
      });
}

bool NodeProgram::serve(WorkerId caller, ReceivedFrame request) {
  return parts_.server->serve(caller, std::move(request));
}

bool NodeProgram::serveOwn(Task&& task) {
  return parts_.runRequest(*parts_.pools.control, [task = std::move(task)]() mutable {
    // As in Server::run: for an observer, Python's code runs.
    const at::ThreadLocalStateGuard restoredAfterwards{at::ThreadLocalState()};
    task();
  });
}

/// Its sender may have lent memory for it, and counts on this worker to say when it needs the RRefs in it no longer.
void NodeProgram::dropResponse(WorkerId from, ReceivedFrame response) {
  log(LogLevel::debug,
      "dropped the late response to call " + std::to_string(response.header.callId));
  const bool ofDevices = !parts_.devices->used().empty() && carriesTensors(response);
  // Of an answer that comes twice, as under injected faults, the RRefs are in use.
  const bool mayHaveRRefs = mayCarryRRefs(response.header.messageType) &&
      parts_.node.calls().takeUnanswered(response.header.callId);
  if (!ofDevices && !mayHaveRRefs) {
    return;
  }
  parts_.activeCalls
      .start(); // RRefs in it tell their owners, as those do of a call that has not ended
  const std::shared_ptr<void> counted(this, [this](void*) { parts_.activeCalls.finish(); });
  parts_.pools.control->run([this, from, counted, mayHaveRRefs,
                             response = std::move(response)]() mutable {
    guarded("a late response", [&] {
      const DecodedMessage decoded = decodeMessage(std::move(response));
      if (mayHaveRRefs) {
        parts_.pools.endOn(parts_.pools.completions, [counted, message = decoded.message] {
          dropRRefsIn(*message);
        });
      }
      parts_.transfers->discard(from, std::as_const(*decoded.message).tensors(), decoded.targets);
    });
  });
}

void NodeProgram::requestUnsent(WorkerId to) {
  parts_.transfers->peerLost(to); // no tickets in it will be heard of
}

void NodeProgram::await(Waiter& waiter) {
  waiter.await(parts_.loop.get(), handlesSignals() ? checkSignals : std::function<void()>());
}

// ---- peers --------------------------------------------------------------------------------------

std::optional<Refusal> NodeProgram::admit(const WorkerRecord& worker) {
  if (auto objection = objectionToName(worker.name)) {
    return Refusal{ErrorCode::refused, *objection};
  }
  try {
    if (auto objection = parts_.devices->objectionTo(worker)) {
      return Refusal{ErrorCode::refused, *objection};
    }
    parts_.devices->add({worker});
  } catch (const FormatError& e) {
    return Refusal{ErrorCode::refused, e.what()};
  }
  parts_.directory.add(worker);
  parts_.rrefs->forgetWorker(worker.id);
  parts_.pools.control->run(parts_.contexts.peerJoined(worker.id));
  return std::nullopt;
}

void NodeProgram::peerJoined(const WorkerRecord& peer) {
  parts_.options.workerEvents.joined(peer);
}

void NodeProgram::peerLost(WorkerId peer, const Error& error) {
  if (error.code() == ErrorCode::peerLeft && !parts_.isStaticGroup()) {
    parts_.directory.remove(peer, error.message());
    parts_.devices->remove(peer);
  }
  parts_.transfers->peerLost(peer);
  parts_.transfers->endLanes(peer, error.message());
  if (peer != parts_.self.id_) {
    runCallbacks(parts_.server->callerLost(peer));
    parts_.pools.control->run([engine = parts_.engine, peer] { engine->peerLost(peer); });
  }
}

/// A peer whose link has merely broken, or that cannot be dialed, is not gone: from here a network that is cut looks like a
/// process that has died, and a worker that comes back goes on with its contexts.
void NodeProgram::peerGone(const WorkerRecord& peer, const Error& error) {
  const bool left = error.code() == ErrorCode::peerLeft;
  guarded("the end of a peer", [&] {
    // Else all have deleted what they held by then, and PyTorch is to find what they have not.
    if (!left || !parts_.groupEnd->isJoining()) {
      parts_.rrefs->workerGone(peer.id, error);
    }
    parts_.contexts.peerGone(peer.id)(); // nobody else would release what it has opened
    if (error.code() == ErrorCode::workerDied && parts_.isOpen()) {
      parts_.devices->remove(peer.id);
    }
  });
  if (!left || !parts_.isStaticGroup()) {
    parts_.options.workerEvents.lost(peer, error);
  }
}

/// What functions want to have run when nobody waits for them any more.
void NodeProgram::runCallbacks(CancelledCalls::Tasks callbacks) {
  for (Task& callback : callbacks) {
    Task task([callback = std::move(callback)]() mutable {
      const at::ThreadLocalStateGuard restoredAfterwards{freshState()}; // as in complete()
      callback();
    });
    if (!parts_.pools.completions.run(std::move(task)) &&
        !parts_.pools.requests.run(std::move(task))) {
      parts_.disposer.keep(std::move(task)); // this worker shuts down
    }
  }
}

std::string NodeProgram::describe(WorkerId worker) const {
  return parts_.directory.describe(worker);
}

std::string NodeProgram::nameOf(WorkerId worker) const {
  return parts_.directory.nameOf(worker);
}

std::chrono::milliseconds NodeProgram::storeTimeout() const {
  return parts_.storeTimeout();
}

} // namespace torchwire
