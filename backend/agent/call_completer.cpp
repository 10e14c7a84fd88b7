#include "backend/agent/call_completer.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/ivalue_inl.h>

#include <optional>
#include <utility>

#include "autograd/direct_forward.h"
#include "backend/agent/call_end.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/base/thread_role.h"
#include "backend/codec/codec.h"
#include "backend/serve/answer_scope.h"
#include "backend/serve/response.h"
#include "backend/wire/own_requests.h"
#include "cuda/streams.h"

namespace torchwire {

namespace rpc = torch::distributed::rpc;

CallTable::Completion CallCompleter::begin(OwnCall call) {
  parts_.activeCalls.start();
  if (call.pass) {
    TorchEngine::track(call.pass, call.future);
  }
  // Not const: what it holds is moved on, never dropped where the call ends.
  return [this, call = std::move(call)](Outcome outcome) mutable {
    complete(std::move(call), std::move(outcome));
  };
}

// Completing a future runs the user's callbacks, so it happens on a thread that may block: the one that waits for it, or
// one of the pool's.
void CallCompleter::complete(OwnCall call, Outcome outcome) {
  const std::shared_ptr<Waiter> waiter = std::move(outcome.waiter);
  ThreadPool& pool = *call.pool;
  Task task([this, call = std::move(call), outcome = std::move(outcome)]() mutable {
    // Not the state of a thread that waits (a mode in which results would be other tensors); and what a user's callback
    // leaves in it is not for the next one.
    const at::ThreadLocalStateGuard restoredAfterwards{freshState()};
    finishCall(call, std::move(outcome));
    finish(call);
  });
  if (waiter) {
    waiterEnds_.begin();
    waiter->give(std::move(task));
  } else {
    parts_.pools.endOn(pool, std::move(task));
  }
}

void CallCompleter::finishCall(const OwnCall& call, Outcome outcome) {
  expectFree("completing the future of a call");
  try {
    const bool failed = outcome.error || own_requests::isError(outcome.response.header.messageType);
    if (call.to == parts_.self.id_ && call.mayCreate && failed) {
      RRefService::failOwnCreation(*call.future, [&] { setFuture(call, std::move(outcome)); });
    } else {
      setFuture(call, std::move(outcome));
    }
  } catch (const std::exception&
               e) { // libtorch's callbacks for RRefs throw at most errors; the call is over
    log(LogLevel::warning,
        "a callback of a call to " + parts_.directory.describe(call.to) + " raised: " + e.what());
  }
}

c10::intrusive_ptr<rpc::Message> CallCompleter::placed(
    WorkerId from, DecodedMessage decoded) const {
  if (!decoded.targets.devices.empty()) {
    parts_.devices->expectUsed(decoded.targets.devices);
    parts_.transfers->place(from, decoded.message->tensors(), decoded.targets);
  }
  return std::move(decoded.message);
}

void CallCompleter::setFuture(const OwnCall& call, Outcome outcome) {
  c10::intrusive_ptr<Message> response;
  cuda::Storages storages;
  std::optional<cuda::OwnStreams> streams; // of the tensors, until the future knows
  std::exception_ptr failed;
  if (outcome.error) {
    outcome.error = unanswered(call, outcome.error);
  }
  try { // not in the caller's state, in which tensors could be others
    DecodedMessage decoded = responseIn(std::move(outcome), call.mayCreate, call.creates);
    try {
      parts_.devices->expectUsed(decoded.targets.devices);
      streams.emplace(decoded.targets.devices);
    } catch (const std::exception&) { // of a device that is lost
      parts_.transfers->discard(call.to, decoded.message->tensors(), decoded.targets);
      throw;
    }
    response = placed(call.to, std::move(decoded));
    storages = cuda::deviceStorages(std::as_const(*response).tensors());
  } catch (const std::exception&) {
    failed = std::current_exception();
  }
  const AnswerScope answer(call.to); // libtorch's callbacks unpickle
  std::optional<at::ThreadLocalStateGuard> callersForTheCallbacks;
  if (call.state) {
    callersForTheCallbacks.emplace(*call.state);
  }
  at::IValue value;
  if (!failed) {
    try {
      if (call.read) {
        const TraceLog::Reading reading(parts_.metrics->trace, call.to, response->id());
        if (call.isDirect) {
          receiveDirectForward(call.to, call.context, response);
        }
        value = call.read(std::move(response));
      } else {
        value = at::IValue(std::move(response));
      }
    } catch (const std::exception&) {
      failed = std::current_exception();
    }
  }
  if (failed) {
    call.future->setError(failed);
  } else {
    torchwire::complete(*call.future, std::move(value), std::move(storages));
  }
}

Error CallCompleter::unanswered(const CallTarget& call, const Error& error) {
  if (call.context && error.executed() != Executed::no) {
    parts_.contexts.ownCallUnanswered(*call.context, call.to);
  }
  return error.to(parts_.directory.nameOf(call.to));
}

// Who gets the future can see that the call has failed, as on PyTorch's faulty backend. Nobody has it yet, so that no
// callback runs but that of watchCreation, which knows of no RRef yet.
void CallCompleter::failUnseen(OwnCall call, uint64_t callId, const Error& error) {
  if (!parts_.node.calls().withdraw(callId, error.code())) {
    return; // it has ended meanwhile in another way
  }
  call.future->setError(toException(error.to(parts_.directory.nameOf(call.to)), call.mayCreate));
  ThreadPool& pool = *call.pool;
  parts_.pools.endOn(pool, [this, call = std::move(call)]() mutable { finish(call); });
}

/// After the callbacks.
void CallCompleter::finish(OwnCall& call) {
  call.kept.reset(); // which may tell owners, in further calls
  if (call.creates) {
    creations_.remove(*call.future);
  }
  ended(call);
}

void CallCompleter::ended(const CallTarget& call) noexcept {
  if (call.context) {
    guarded("the end of a call in an autograd context", [&] {
      parts_.contexts.ownCallEnded(*call.context, call.to);
    });
  }
  parts_.activeCalls.finish();
}

} // namespace torchwire
