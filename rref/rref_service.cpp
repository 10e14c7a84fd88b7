#include "rref/rref_service.h"

#include <torch/csrc/distributed/rpc/python_rpc_handler.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>
#include <torch/csrc/distributed/rpc/unpickled_python_remote_call.h>

#include <exception>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backend/base/call_error.h"
#include "backend/base/fork.h"
#include "backend/base/log.h"
#include "backend/serve/current_call.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/pending_rrefs.h"
#include "backend/serve/python_value.h"
#include "backend/serve/response.h"
#include "rref/context_lifetime.h"
#include "rref/context_view.h"
#include "rref/creation_request.h"
#include "rref/failed_creation.h"
#include "rref/lost_creation.h"
#include "rref/own_requests.h"
#include "rref/private_members.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using rpc::JitFuture;
using rpc::MessageType;
using rpc::RpcCommandBase;
using Future = c10::intrusive_ptr<JitFuture>;

rpc::RRefContext& context() {
  return rpc::RRefContext::getInstance();
}

Future acknowledgement() {
  return completed(rpc::RRefAck().toMessage());
}

/// The owner in libtorch's RRefContext, entered there now unless its program has made it by a call to itself. `type` is
/// that of the RRef where it has none of its value's: libtorch compares it with that of each RRef that comes from a user.
c10::intrusive_ptr<rpc::OwnerRRef> ownerOf(
    const rpc::RRefId& rref, const rpc::ForkId& fork, const JitFuture& value,
    const at::TypePtr& type) {
  if (rref == fork) {
    return rpc::fromRRefInterface(
        context().getOwnerRRef(rref, /* forceCreated */ true)->constValue().toRRef());
  }
  if (!value.completed() || !value.hasError()) {
    return context().getOrCreateOwnerRRef(rref, value.elementType());
  }
  auto early = findOwner(context(), rref);
  return early ? early : context().getOrCreateOwnerRRef(rref, type);
}

/// What an operator or a TorchScript function returns, as far as this worker knows it.
at::TypePtr resultType(const rpc::ScriptCall& call) {
  const torch::jit::Function* const function = call.hasOp()
      ? nullptr
      : rpc::PythonRpcHandler::getInstance().jitCompilationUnit()->find_function(
            call.qualifiedName());
  if (!call.hasOp() && function == nullptr) {
    return at::AnyType::get();
  }
  const auto& results =
      call.hasOp() ? call.op()->schema().returns() : function->getSchema().returns();
  return results.size() == 1 ? results.front().type() : at::TypePtr(at::AnyType::get());
}

/// Of an RRef that gets no value.
at::TypePtr typeOfNone(bool isOfPython) {
  return isOfPython ? at::TypePtr(at::PyObjectType::get()) : at::TypePtr(at::AnyType::get());
}

/// Gives an owner what its function has returned. Not null: why it has none.
std::exception_ptr setValue(rpc::OwnerRRef& owner, JitFuture& result) {
  if (result.hasError()) {
    return result.exception_ptr();
  }
  try {
    owner.setValue(result.value());
    return nullptr;
  } catch (const std::exception&) { // the RRef is of another type than its value, say
    return std::current_exception();
  }
}

void tellOwner(const rpc::RRef& rref, const CreationSite& site) {
  const auto& agent = context().agent();
  try {
    agent->send(
        agent->getWorkerInfo(rref.owner()), toMessage(site)); // nothing depends on the answer
  } catch (const std::exception& e) {
    log(LogLevel::info, std::string("an RRef's owner was not told where it was made: ") + e.what());
  }
}

} // namespace

// ---- the forks in libtorch's RRefContext --------------------------------------------------------

void LibtorchForks::add(const GlobalId& rref, const GlobalId& fork) {
  const ForeignLock libtorchs(LockRank::rrefContext);
  context().addForkOfOwnerIfNotPresent(toTorchId(rref), toTorchId(fork));
}

ForkTable::Released LibtorchForks::remove(const GlobalId& rref, const GlobalId& fork) {
  const ForeignLock libtorchs(LockRank::rrefContext);
  auto owner = context().delForkOfOwner(toTorchId(rref), toTorchId(fork));
  // An owner's Python object takes the GIL by itself when it ends.
  return owner ? std::make_shared<c10::intrusive_ptr<rpc::RRef>>(std::move(owner)) : nullptr;
}

bool LibtorchForks::awaitsValue(const GlobalId& rref) {
  return rref.createdOn != context().getWorkerId() &&
      torchwire::awaitsValue(context(), toTorchId(rref));
}

// ---- handlers -----------------------------------------------------------------------------------

void RRefService::serve(Dispatcher& dispatcher) {
  dispatcher.whenOwnerUnpickled([self = shared_from_this()] { self->keepEarlyOwners(); });
  serveCreation(dispatcher);
  serveFetches(dispatcher);
  serveForks(dispatcher);
  serveOwnMessages(dispatcher);
}

void RRefService::serveCreation(Dispatcher& dispatcher) {
  const auto self = shared_from_this();
  dispatcher.handle(
      MessageType::PYTHON_REMOTE_CALL, [self](WorkerId caller, RpcCommandBase& command) {
        auto& call = static_cast<rpc::UnpickledPythonRemoteCall&>(command);
        return self->create(caller, call.rrefId(), call.forkId(), at::PyObjectType::get(), [&] {
          return runPython(self->dispatcher_, call.pythonUdf(), call.isAsyncExecution());
        });
      });
  dispatcher.handle(
      MessageType::SCRIPT_REMOTE_CALL, [self](WorkerId caller, RpcCommandBase& command) {
        auto& call = static_cast<rpc::ScriptRemoteCall&>(command);
        return self->create(caller, call.retRRefId(), call.retForkId(), resultType(call), [&] {
          return self->dispatcher_.runScript(call);
        });
      });
  dispatcher.handleFailedCreations(
      [self](WorkerId caller, const rpc::Message& request, const std::exception_ptr& error) {
        return self->failCreation(caller, request, error);
      });
}

/// Null: the request creates none.
Future RRefService::failCreation(
    WorkerId caller, const rpc::Message& request, const std::exception_ptr& error) {
  const PendingRRefs unused; // RRefs among the arguments, which nobody gets
  const auto creation = creationIn(request);
  if (!creation) {
    return nullptr;
  }
  return create(
      caller, creation->rref, creation->fork, typeOfNone(creation->isOfPython),
      [&]() -> Future { std::rethrow_exception(error); });
}

/// Does nothing where its function has begun after all.
void RRefService::failLostCreation(WorkerId caller, const LostCreation& lost) {
  create(
      caller, toTorchId(lost.rref), toTorchId(lost.fork), typeOfNone(lost.isOfPython),
      [&]() -> Future {
        std::rethrow_exception(exceptionOf(
            lost.why.saying("RRef creation via rpc.remote() failed: " + lost.why.message())));
      });
}

void RRefService::serveFetches(Dispatcher& dispatcher) {
  const auto self = shared_from_this();
  dispatcher.handle(MessageType::PYTHON_RREF_FETCH_CALL, [self](WorkerId, RpcCommandBase& command) {
    const RRefId rref = static_cast<rpc::PythonRRefFetchCall&>(command).rrefId();
    self->note(&rref, nullptr);
    return self->valueFor(rref)->then(
        [](JitFuture& value) {
          return withDeviceStorages(
              rpc::PythonRRefFetchRet(serializePython(value.value()).toIValues()).toMessage());
        },
        messageType());
  });
  dispatcher.handle(MessageType::SCRIPT_RREF_FETCH_CALL, [self](WorkerId, RpcCommandBase& command) {
    const RRefId rref = static_cast<rpc::ScriptRRefFetchCall&>(command).rrefId();
    self->note(&rref, nullptr);
    return self->valueFor(rref)->then(
        [](JitFuture& value) {
          return withDeviceStorages(rpc::ScriptRRefFetchRet({value.value()}).toMessage());
        },
        messageType());
  });
}

void RRefService::serveForks(Dispatcher& dispatcher) {
  const auto self = shared_from_this();
  dispatcher.handle(
      MessageType::RREF_FORK_REQUEST, [self](WorkerId caller, RpcCommandBase& command) {
        auto& request = static_cast<rpc::RRefForkRequest&>(command);
        self->note(&request.rrefId(), &request.forkId());
        self->ledger_.add(toGlobalId(request.rrefId()), toGlobalId(request.forkId()), caller);
        return acknowledgement();
      });
  dispatcher.handle(MessageType::RREF_USER_DELETE, [self](WorkerId, RpcCommandBase& command) {
    auto& request = static_cast<rpc::RRefUserDelete&>(command);
    self->note(&request.rrefId(), &request.forkId());
    self->passed_.settled(toGlobalId(request.forkId()));
    self->ledger_.remove(toGlobalId(request.rrefId()), toGlobalId(request.forkId()));
    return acknowledgement();
  });
  // The parent may drop its RRef now. libtorch ignores a child that it does not know (any more).
  dispatcher.handle(MessageType::RREF_CHILD_ACCEPT, [self](WorkerId, RpcCommandBase& command) {
    const rpc::ForkId& fork = static_cast<rpc::RRefChildAccept&>(command).forkId();
    self->note(nullptr, &fork);
    self->passed_.settled(toGlobalId(fork));
    context().delPendingChild(fork);
    return acknowledgement();
  });
}

void RRefService::serveOwnMessages(Dispatcher& dispatcher) {
  const auto self = shared_from_this();
  dispatcher.handleOwn(own_messages::kCreationSite, [self](WorkerId, rpc::Message& request) {
    CreationSite site = creationSiteIn(request);
    self->metadata_.placeAt(site.rref, std::move(site.site));
    self->sweepMetadata();
    return acknowledgement();
  });
  dispatcher.handleOwn(
      own_messages::kCreationFailed, [self](WorkerId caller, rpc::Message& request) {
        self->failLostCreation(caller, lostCreationIn(request));
        return acknowledgement();
      });
  dispatcher.handleOwn(own_messages::kHoldersRequest, [](WorkerId, rpc::Message& request) {
    std::unordered_set<GlobalId, GlobalIdHash> here;
    for (const UserView& user : usersOf(context())) {
      here.insert(user.fork);
    }
    auto forks = forksIn(request);
    std::erase_if(forks, [&](const GlobalId& fork) { return !here.contains(fork); });
    return completed(holdersReply(forks));
  });
}

// ---- creation -----------------------------------------------------------------------------------

Future RRefService::create(
    WorkerId caller, const RRefId& rref, const ForkId& fork, const at::TypePtr& type,
    const RunFunction& run) {
  note(&rref, &fork);
  auto response = c10::make_intrusive<JitFuture>(messageType());
  const bool first = ledger_.begin(
      toGlobalId(rref), toGlobalId(fork), caller,
      [response, rref, fork] { complete(*response, rpc::RemoteRet(rref, fork).toMessage()); });
  if (first) {
    metadata_.see(toGlobalId(rref));
    sweepMetadata();
    runCreation(rref, fork, type, [&] {
      try {
        return run();
      } catch (const std::exception&) { // the function has not even begun
        return raised(std::current_exception(), type);
      }
    });
  }
  return response;
}

// The owner is entered in the RRefContext after its function has run, as libtorch does it: only then is its type
// known. Who asks for the RRef before waits for the entry.
void RRefService::runCreation(
    const RRefId& rref, const ForkId& fork, const at::TypePtr& type, const RunFunction& run) {
  const GlobalId forkId = toGlobalId(fork);
  const uint64_t generation = forkGeneration();
  try {
    const Future value = run();
    endIfForkedSince(generation); // before the value goes to those who wait for it
    auto owner = ownerOf(rref, fork, *value, type);
    ledger_.entered(forkId);
    value->addCallback([self = shared_from_this(), owner, forkId, lifetime = rrefLifetime(),
                        generation, request = ServingScope::current().request()](JitFuture& done) {
      endIfForkedSince(generation);
      if (const std::exception_ptr error = setValue(*owner, done)) {
        ServingScope::countError(request);
        owner->setError(error);
      }
      if (lifetime == rrefLifetime()) { // else libtorch's table has another group's forks
        self->ledger_.finished(forkId);
      }
    });
  } catch (const std::exception&) {
    ledger_.finished(forkId); // a copy of the request must not wait for ever
    throw;
  }
}

/// Notes which RRef the request is about that the calling thread serves; in the trace, too, while that is on. Null: it does
/// not say.
void RRefService::note(const RRefId* rref, const ForkId* fork) const {
  if (rref != nullptr) {
    ServingScope::noteRRef(GlobalIdHash()(toGlobalId(*rref)));
  }
  if (!metrics_->trace.isOn()) {
    return;
  }
  TraceLog::Note note = ServingScope::current().note(TraceLog::Note::Kind::rref);
  note.subject = rref == nullptr ? "" : toString(toGlobalId(*rref));
  note.detail = fork == nullptr ? "" : toString(toGlobalId(*fork));
  metrics_->trace.add(std::move(note));
}

// libtorch makes an owner when an RRef of this worker's comes in somebody's arguments and its creation has not: that was
// slower, or its function still runs, or who has asked for it is gone.
void RRefService::keepEarlyOwners() {
  for (const OwnerView& owner : ownersOf(context())) {
    if (owner.hasValue) {
      continue;
    }
    if (const Error never = ledger_.keepUntilEntered(owner.id)) {
      abandon(owner.id, never);
    }
  }
}

Future RRefService::valueFor(const RRefId& rref) {
  auto value = valueOf(rref);
  if (!value->completed() && !findOwner(context(), rref)) {
    if (const Error never =
            ledger_.whyNever(toGlobalId(rref))) { // after it waits: see workerGone()
      abandon(toGlobalId(rref), never);
    }
  }
  return value;
}

// libtorch's own callback, which comes after this one, tells the wrong RRef (see failed_creation.h), and forgets the one
// that is meant.
void RRefService::watchCreation(JitFuture& creation) {
  creation.addCallback(
      [](JitFuture& done) {
        const auto user = done.hasError() ? userCreatedBy(context(), done) : nullptr;
        if (user) {
          setCreationFailed(*user, done);
          tellOwnerIfLost(context(), static_cast<const rpc::UserRRef&>(*user), done);
        }
      },
      /*uses_future=*/true);
}

void RRefService::failOwnCreation(JitFuture& creation, const std::function<void()>& end) {
  const auto before =
      ownersInCreation(context()); // before libtorch takes the one that is meant off its list
  std::exception_ptr thrown;
  try {
    end();
  } catch (...) {
    thrown = std::current_exception();
  }
  for (const auto& owner : before) {
    if (!owner->hasValue() && !isInCreation(context(), *owner)) {
      setCreationFailed(*owner, creation);
    }
  }
  if (thrown) {
    std::rethrow_exception(thrown);
  }
}

void RRefService::noteCreated(const c10::intrusive_ptr<rpc::RRef>& rref, const std::string& site) {
  const Future creation = rref->getOwnerCreationFuture();
  if (creation && creation->hasError()) {
    setCreationFailed(*rref, *creation); // before libtorch had entered the RRef anywhere
  }
  const GlobalId id = toGlobalId(rref->rrefId());
  const GlobalId here = rref->isOwner()
      ? id
      : toGlobalId(c10::static_intrusive_pointer_cast<rpc::UserRRef>(rref)->forkId());
  if (site.empty()) {
    metadata_.see(here);
  } else {
    metadata_.placeAt(here, site);
    if (!rref->isOwner()) {
      tellOwner(*rref, CreationSite{id, site});
    }
  }
  sweepMetadata();
}

void RRefService::beginIdsAt(uint64_t random) {
  constexpr rpc::local_id_t kDrawn = rpc::local_id_t{1}
      << 32; // more than a process makes before it joins a group
  auto& next = *pointerTo(NextRRefId());
  if (next < kDrawn) {
    next = kDrawn + static_cast<rpc::local_id_t>(random >> 2);
  }
}

void RRefService::workerGone(WorkerId worker, const Error& why) {
  for (const UserView& user : usersOf(context())) {
    if (user.ownerId == worker) {
      orphans_.add(user.id, user.fork);
    }
  }
  const Error gone = why.saying(
      "the RRef is not at its owner, and will not be: it was still to be created by, or was last "
      "held by, a worker that is gone: " +
      why.message());
  for (const GlobalId& rref : ledger_.workerGone(worker, gone)) {
    abandon(rref, gone);
  }
  for (const GlobalId& rref : awaitedOwners(context())) {
    if (const Error never = ledger_.whyNever(rref)) {
      abandon(rref, never);
    }
  }
  const auto released = ledger_.reclaim(worker); // dropped at the end, unlocked
  // What the owner can confirm no more, libtorch would wait for at a shutdown.
  for (const rpc::ForkId& fork : childrenOwnedBy(context(), worker)) {
    context().delPendingChild(fork);
  }
  for (const rpc::ForkId& fork : forksToBeConfirmedBy(context(), worker)) {
    letGoPendingUser(fork);
  }
  reclaimPassed(worker);
}

/// Ends the wait for an RRef that no creation will bring.
void RRefService::abandon(const GlobalId& rref, const Error& why) {
  auto owner = findOwner(context(), toTorchId(rref));
  if (!owner) { // those who fetch it wait for its entry
    owner = context().getOrCreateOwnerRRef(toTorchId(rref), at::PyObjectType::get());
  }
  owner->setError(exceptionOf(why));
  const auto released = ledger_.dropUnforked(rref);
}

bool RRefService::asksForOrphan(const rpc::Message& request) const {
  if (!orphans_.any()) {
    return false;
  }
  switch (request.type()) {
    case MessageType::PYTHON_RREF_FETCH_CALL:
      return orphans_.contains(
          toGlobalId(rpc::PythonRRefFetchCall::fromMessage(request)->rrefId()));
    case MessageType::SCRIPT_RREF_FETCH_CALL:
      return orphans_.contains(
          toGlobalId(rpc::ScriptRRefFetchCall::fromMessage(request)->rrefId()));
    default:
      return false;
  }
}

bool RRefService::deletesOrphan(const rpc::Message& request) {
  return orphans_.any() && request.type() == MessageType::RREF_USER_DELETE &&
      orphans_.remove(toGlobalId(rpc::RRefUserDelete::fromMessage(request)->forkId()));
}

void RRefService::reclaimPassed(WorkerId gone) {
  for (const PassedForks::Fork& passed : passed_.takeThoseOf(gone)) {
    if (passed.owner == context().getWorkerId()) {
      const auto released = ledger_.reclaim(passed.rref, passed.fork, gone);
    } else {
      context().delPendingChild(toTorchId(passed.fork));
    }
  }
}

void RRefService::takeBack(const PassedForks::Forks& neverReceived) {
  for (const PassedForks::Fork& passed : passed_.take(neverReceived)) {
    takeBack(passed);
  }
}

void RRefService::withdraw(const std::vector<PassedForks::Fork>& pickled) {
  for (const PassedForks::Fork& fork : passed_.withdrawn(pickled)) {
    takeBack(fork);
  }
}

void RRefService::takeBack(const PassedForks::Fork& fork) {
  if (fork.owner == context().getWorkerId()) {
    drop(fork.rref, fork.fork);
  } else {
    context().delPendingChild(toTorchId(fork.fork));
  }
}

void RRefService::sweepMetadata() {
  if (!metadata_.wantsSweep()) {
    return;
  }
  RRefMetadata::Ids alive;
  for (const OwnerView& owner : ownersOf(context())) {
    alive.insert(owner.id);
  }
  for (const UserView& user : usersOf(context())) {
    alive.insert(user.fork);
  }
  for (const ForkLedger::Entry& creation : ledger_.running()) {
    alive.insert(creation.rref);
  }
  metadata_.sweep(alive);
}

} // namespace torchwire
