#include "backend/node/node.h"

#include <condition_variable>
#include <exception>
#include <memory>
#include <utility>

#include "backend/base/annotations.h"
#include "backend/base/guarded.h"
#include "backend/base/interruption.h"
#include "backend/base/log.h"
#include "backend/base/resource_limits.h"
#include "backend/wire/failure.h"
#include "backend/wire/message_body.h"
#include "backend/wire/own_requests.h"

namespace torchwire {
namespace {

OutgoingFrame refusalOf(uint64_t callId, const Error& error) {
  OutgoingFrame answer =
      bodyFrame(FrameKind::response, own_requests::kRefused, encodeFailure(error));
  setCallId(answer, callId);
  return answer;
}

Error refusalIn(ReceivedFrame answer) {
  try {
    return decodeFailure(bodyIn(std::move(answer)));
  } catch (const std::exception& e) {
    return Error(
        ErrorCode::badFrame, std::string("cannot read why a call is refused: ") + e.what());
  }
}

void logUnsentResponse(const Error& error) {
  if (error) {
    log(LogLevel::info, "a response was not sent: " + error.message());
  }
}

/// For the record: what has become of a peer.
const char* incidentOf(ErrorCode end) {
  switch (end) {
    case ErrorCode::workerDied:
      return "worker died";
    case ErrorCode::declaredDead:
      return "this worker declared dead";
    default:
      return "worker left";
  }
}

} // namespace

Node::Node(const Settings& settings, Parts parts)
    : settings_(settings),
      parts_(std::move(parts)),
      calls_(parts_.timer, settings.firstCallId),
      requests_(senderWorker()),
      ownCalls_(ownCallsWorker()),
      stores_(std::make_shared<PeerStores>(settings.id, storeLinks())) {
  calls_.traceTo(&parts_.trace);
  ownCalls_.handle(
      own_requests::kStoreRequest,
      [this](WorkerId caller, const OwnCalls::Body& request, const OwnCalls::Reply& reply) {
        reply(stores_->serve(caller, request));
      });
}

RequestSender::Worker Node::senderWorker() {
  return {
      calls_, settings_.maxBytesInFlight,
      [this](WorkerId to, OutgoingFrame request, Link::Sent sent) {
        links_->send(to, std::move(request), std::move(sent));
      },
      [this](WorkerId to) { parts_.program.requestUnsent(to); }};
}

OwnCalls::Worker Node::ownCallsWorker() {
  return {
      requests_, [this](Waiter& waiter) { parts_.program.await(waiter); },
      [this](Task&& task) { return parts_.program.serveOwn(std::move(task)); },
      [this](WorkerId caller, OutgoingFrame response) {
        links_->sendIfConnected(caller, std::move(response), logUnsentResponse);
      },
      [this](WorkerId caller, uint64_t incarnation) {
        return links_->isFormer(caller, incarnation);
      }};
}

// None of this counts as a call: the shutdown that needs it waits until there is none.
PeerStores::Links Node::storeLinks() {
  return {
      [this](WorkerId server, std::vector<char> request) {
        return ownCalls_.ask(
            server, own_requests::kStoreRequest, std::move(request), parts_.program.storeTimeout());
      },
      [this](WorkerId to, std::vector<char> request) { tellOfStore(to, std::move(request)); },
      [this] { return livingPeers(); },
      [this](WorkerId worker) { return parts_.program.describe(worker); }};
}

// ---- starting -----------------------------------------------------------------------------------

void Node::open(LinkContext& context, Processes& processes, Membership& membership) {
  membership_ = &membership;
  links_ = std::make_shared<LinkManager>(context, parts_.timer, linkEvents(), settings_.limits);
  deaths_ = std::make_unique<PeerDeaths>(PeerDeaths::Worker{
      *links_, membership, processes, ownCalls_, parts_.timer, parts_.deaths,
      settings_.limits.sessionTimeout, settings_.isOpen});
}

LinkManager::Events Node::linkEvents() {
  LinkManager::Events events;
  events.frame = [this](WorkerId from, ReceivedFrame frame) { onFrame(from, std::move(frame)); };
  events.peerLost =
      [this](WorkerId peer, const Error& error, const CallIds& received, const CallIds& unsent) {
        return onPeerLost(peer, error, received, unsent);
      };
  events.peerGone = [this](const WorkerRecord& peer, const Error& error) {
    parts_.control([this, peer, error] { onPeerGone(peer, error); });
  };
  events.declaredDead = [this](const std::string& reason) { links_->endPart(reason); };
  events.linkBroken = [this](WorkerId peer, const Error& error) {
    note("link broken", peer, error);
    deaths_->linkBroken(peer);
  };
  events.sessionResumed = [this](WorkerId peer) { note("session resumed", peer, {}); };
  if (settings_.isOpen) {
    events.unknownPeer = [this](const Hello& hello) { return onUnknownPeer(hello); };
    events.peerJoined = [this](const WorkerRecord& peer) {
      parts_.control([this, peer] { parts_.program.peerJoined(peer); });
    };
  }
  return events;
}

void Node::begin(const Roster& roster) {
  links_->setGroup(membership_->self(), roster.groupId);
  for (const WorkerRecord& worker : roster.workers) {
    if (worker.id != settings_.id) {
      links_->addPeer(worker);
    }
  }
  if (settings_.isStatic) {
    membership_->continueWith(stores_);
  }
  // Once all are peers: when one turns out to be dead, this worker tells the others.
  for (const WorkerRecord& worker : roster.workers) {
    if (worker.id != settings_.id) {
      deaths_->watch(worker);
    }
  }
  links_->acceptPeers(); // from now on a peer may be replaced by its successor
}

void Node::introduce(const std::function<void()>& check) {
  struct Dials {
    Mutex mutex{LockRank::introduction};
    std::condition_variable_any none;
    size_t pending; // under the mutex
  };
  const auto peers = links_->status();
  const auto dials = std::make_shared<Dials>();
  dials->pending = peers.size();
  for (const PeerStatus& peer : peers) {
    links_->connect(peer.record.id, [dials](const Error&) { // an error has been logged
      MutexLock lock(dials->mutex);
      --dials->pending;
      dials->none.notify_all();
    });
  }
  const auto areOver = [&] {
    MutexLock lock(dials->mutex);
    return dials->none.wait_for(lock, kInterruptionInterval, [&] { return dials->pending == 0; });
  };
  while (!areOver()) { // dials have their own deadlines
    check();
  }
}

// ---- frames -------------------------------------------------------------------------------------

void Node::onFrame(WorkerId from, ReceivedFrame frame) {
  if (frame.header.kind == FrameKind::request) {
    onRequest(from, std::move(frame));
  } else {
    onResponse(from, std::move(frame));
  }
}

void Node::onRequest(WorkerId from, ReceivedFrame request) {
  const uint64_t callId = request.header.callId;
  if (request.frame.lost != 0) {
    refuse(from, callId, memoryLimits(request.frame.lost));
    return;
  }
  const bool served = ownCalls_.serves(request.header.messageType)
      ? ownCalls_.serve(from, std::move(request))
      : parts_.program.serve(from, std::move(request));
  if (!served) {
    refuse(from, callId, threadLimits());
  }
}

void Node::onResponse(WorkerId from, ReceivedFrame response) {
  const uint64_t callId = response.header.callId;
  if (response.frame.lost != 0) {
    const Error error(
        ErrorCode::unreachable,
        "the answer of worker '" + parts_.program.nameOf(from) + "' is lost: at this worker, '" +
            settings_.name + "', " + memoryLimits(response.frame.lost),
        Executed::yes);
    log(LogLevel::warning, error.message());
    calls_.fail(callId, error, from);
  } else if (response.header.messageType == own_requests::kRefused) {
    onRefusal(from, callId, refusalIn(std::move(response)));
  } else if (!calls_.answer(callId, from, std::move(response))) {
    parts_.program.dropResponse(from, std::move(response));
  }
}

void Node::onRefusal(WorkerId from, uint64_t callId, const Error& refusal) {
  if (calls_.fail(callId, refusal, from)) {
    return;
  }
  if (const auto undo = calls_.takeUnanswered(callId)) { // the call has timed out, say
    (*undo)();
  }
}

/// `limits`: of this process, as in resource_limits.h.
void Node::refuse(WorkerId from, uint64_t callId, const std::string& limits) {
  const bool ends = isClosed();
  const Error error(
      ends ? ErrorCode::shutDown : ErrorCode::unreachable,
      "worker '" + settings_.name +
          "' does not serve the call: " + (ends ? "it shuts down" : limits),
      Executed::no);
  log(LogLevel::warning, error.message());
  if (from == settings_.id) {
    calls_.fail(callId, error);
  } else if (!ends) {
    links_->sendIfConnected(from, refusalOf(callId, error), [](const Error&) {});
  }
}

// ---- peers --------------------------------------------------------------------------------------

Task Node::onPeerLost(
    WorkerId peer, const Error& error, const CallIds& received, const CallIds& unsent) {
  const ErrorCode code = error.code();
  if (code != ErrorCode::peerLeft) {
    note("link lost", peer, error);
  }
  const bool lives = code == ErrorCode::linkBroken || code == ErrorCode::badFrame;
  Task complete = calls_.takePeer(peer, error, lives ? received : CallIds(), unsent);
  parts_.program.peerLost(peer, error); // before a death is found, which is a loss of its own
  if (peer != settings_.id) { // else it lives: only a frame to itself was damaged
    ownCalls_.callerLost(peer);
    deaths_->peerLost(peer, error);
  }
  return complete;
}

void Node::onPeerGone(const WorkerRecord& peer, const Error& error) {
  note(incidentOf(error.code()), peer.id, error);
  guarded("the end of a peer", [&] { parts_.program.peerGone(peer, error); });
  links_->reclaimed(peer.id, peer.incarnation);
  if (error.code() == ErrorCode::workerDied) {
    deaths_->peerDied(peer, error);
  }
}

std::optional<Refusal> Node::onUnknownPeer(const Hello& hello) {
  auto refusal = parts_.program.admit(hello.self);
  if (!refusal) {
    deaths_->watch(hello.self);
  }
  return refusal;
}

void Node::tellOfStore(WorkerId to, std::vector<char> request) {
  guarded("telling a worker that the rendezvous store is gone", [&] {
    ownCalls_.open(
        to, own_requests::kStoreRequest, std::move(request), parts_.program.storeTimeout());
  });
}

std::set<WorkerId> Node::livingPeers() const {
  std::set<WorkerId> living;
  for (const PeerStatus& peer : links_->status()) {
    if (!isGone(peer.state)) {
      living.insert(peer.record.id);
    }
  }
  return living;
}

std::optional<std::string> Node::whyUnsent(WorkerId to, uint64_t callId) const {
  if (requests_.isWaiting(to, callId)) {
    return "its request has not been sent, for as many bytes as max_bytes_in_flight allows are "
           "under way to the worker";
  }
  const auto status = to == settings_.id ? std::nullopt : links_->statusOf(to);
  if (status && status->state != PeerState::connected) {
    return std::string("the connection to the worker is ") + nameOf(status->state) +
        ": the request has not been sent, or its answer cannot come";
  }
  return std::nullopt;
}

/// For a trace that is on. On any thread, under any lock.
void Node::note(const char* incident, WorkerId peer, const Error& why) {
  if (!parts_.trace.isOn()) {
    return;
  }
  guarded("tracing an incident", [&] {
    TraceLog::Note note;
    note.peer = peer;
    note.begun = note.ended = TraceLog::Clock::now();
    note.subject = incident;
    note.detail = why ? why.message() : "";
    parts_.trace.add(std::move(note));
  });
}

} // namespace torchwire
