#include "test/unit/support/memory_worker.h"

#include <stdexcept>
#include <utility>

namespace torchwire {

OutgoingFrame textFrame(const std::string& text) {
  OutgoingFrame frame;
  ByteWriter out(frame.head);
  FrameHeader{.kind = FrameKind::request, .bodyLength = text.size()}.write(out);
  out.raw(text.data(), text.size());
  return frame;
}

std::string textOf(const IncomingFrame& frame) {
  ByteReader in(frame.head);
  const FrameHeader header = FrameHeader::read(in);
  const char* text = in.raw(header.bodyLength);
  return std::string(text, header.bodyLength);
}

LinkManager::Limits quickLimits() {
  LinkManager::Limits limits;
  limits.refusedGrace = std::chrono::milliseconds(0);
  limits.retryDelay = std::chrono::milliseconds(1);
  return limits;
}

LinkManager::Limits sessionLimits(std::chrono::milliseconds sessionTimeout) {
  LinkManager::Limits limits = quickLimits();
  limits.sessionTimeout = sessionTimeout;
  limits.precedence = std::chrono::milliseconds(3);
  limits.resumeRetryDelay = std::chrono::milliseconds(4);
  limits.acknowledgeDelay = std::chrono::milliseconds(1);
  return limits;
}

WorkerRecord recordOf(WorkerId id) {
  WorkerRecord record;
  record.name = "w" + std::to_string(id);
  record.id = id;
  record.incarnation = 1000 + static_cast<uint64_t>(id);
  record.address = "memory://" + record.name;
  record.torchVersion = "2.11.0";
  record.protocolVersion = kProtocolVersion;
  return record;
}

Hello helloOf(const WorkerRecord& from, const MemoryWorker& to) {
  Hello hello;
  hello.self = from;
  hello.groupId = WorkerSettings().groupId;
  hello.toId = to.record().id;
  hello.toIncarnation = to.record().incarnation;
  hello.offer = to.context().offer();
  return hello;
}

// ---- a worker -----------------------------------------------------------------------------------

struct MemoryWorker::Report {
  explicit Report(Notifier& n) : notifier(n) {}

  Notifier& notifier;
  mutable Mutex mutex{LockRank::test};
  std::vector<Arrival> arrivals GUARDED_BY(mutex);
  std::vector<Loss> losses GUARDED_BY(mutex);
  std::vector<std::string> sessionTurns GUARDED_BY(mutex);
  std::vector<std::string> deaths GUARDED_BY(mutex);
  std::vector<std::string> declaredDead GUARDED_BY(mutex);
  std::weak_ptr<LinkManager> links; // written before it has any event

  void addArrival(WorkerId from, const std::string& text) EXCLUDES(mutex) {
    {
      MutexLock lock(mutex);
      arrivals.push_back({from, text});
    }
    notifier.notify();
  }
  void addDeath(const std::string& death) EXCLUDES(mutex) {
    {
      MutexLock lock(mutex);
      deaths.push_back(death);
    }
    notifier.notify();
  }
  void addDeclaredDead(const std::string& reason) EXCLUDES(mutex) {
    {
      MutexLock lock(mutex);
      declaredDead.push_back(reason);
    }
    notifier.notify();
  }
  void addSessionTurn(const std::string& turn) EXCLUDES(mutex) {
    {
      MutexLock lock(mutex);
      sessionTurns.push_back(turn);
    }
    notifier.notify();
  }
  void addLoss(WorkerId peer, const Error& error, const CallIds& received) EXCLUDES(mutex) {
    {
      MutexLock lock(mutex);
      losses.push_back({peer, error, received});
    }
    notifier.notify();
  }
};

MemoryWorker::MemoryWorker(World& world, WorkerId id, WorkerSettings settings)
    : world_(world),
      context_(
          settings.context != nullptr
              ? *settings.context
              : world.network.context(
                    settings.address.empty() ? recordOf(id).address : settings.address)),
      groupId_(settings.groupId),
      record_(recordOf(id)),
      report_(std::make_shared<Report>(world.ledger.notifier())) {
  record_.torchVersion = settings.torchVersion;
  if (settings.incarnation != 0) {
    record_.incarnation = settings.incarnation;
  }
  links_ = std::make_shared<LinkManager>(context_, world.timer, events(settings), settings.limits);
  report_->links = links_;
  record_.address = links_->listen();
}

LinkManager::Events MemoryWorker::events(WorkerSettings& settings) const {
  LinkManager::Events events;
  events.frame = [report = report_, then = settings.onFrame](
                     WorkerId from, const ReceivedFrame& received) {
    const std::string text = textOf(received.frame);
    report->addArrival(from, text);
    if (then) {
      then(text);
    }
  };
  events.peerLost = [report = report_, then = settings.onLost, afterwards = settings.onCallsFailed](
                        WorkerId peer, const Error& error, const CallIds& received,
                        const CallIds&) -> Task {
    report->addLoss(peer, error, received);
    if (then) {
      then(error);
    }
    return afterwards ? Task(afterwards) : Task();
  };
  events.peerGone = [report = report_, reclaims = settings.reclaims](
                        const WorkerRecord& peer, const Error& error) {
    if (error.code() == ErrorCode::workerDied) {
      report->addDeath(error.message());
    }
    const auto links = report->links.lock();
    if (links && reclaims) {
      links->reclaimed(peer.id, peer.incarnation);
    }
  };
  events.declaredDead = [report = report_](const std::string& reason) {
    report->addDeclaredDead(reason);
  };
  events.linkBroken = [report = report_](WorkerId, const Error& error) {
    // On any thread, where Catch2 may not be asked to check.
    report->addSessionTurn(error ? "broken" : "broken without a reason");
  };
  events.sessionResumed = [report = report_](WorkerId) { report->addSessionTurn("resumed"); };
  events.unknownPeer = settings.unknownPeer;
  return events;
}

MemoryWorker::~MemoryWorker() {
  links_->leave(std::chrono::milliseconds(0));
  context_.join();
}

void MemoryWorker::start() {
  links_->setGroup(record_, groupId_);
  links_->acceptPeers();
}

CallbackNote& MemoryWorker::send(const MemoryWorker& to, const std::string& text) {
  CallbackNote& note = world_.ledger.note(text);
  links_->send(to.record().id, textFrame(text), CallbackLedger::expect(note));
  return note;
}

CallbackNote& MemoryWorker::sendIfConnected(const MemoryWorker& to, const std::string& text) {
  CallbackNote& note = world_.ledger.note(text);
  links_->sendIfConnected(to.record().id, textFrame(text), CallbackLedger::expect(note));
  return note;
}

CallbackNote& MemoryWorker::connect(const MemoryWorker& to) {
  CallbackNote& note = world_.ledger.note("connect to " + to.record().name);
  links_->connect(to.record().id, CallbackLedger::expect(note));
  return note;
}

std::vector<MemoryWorker::Arrival> MemoryWorker::arrivals() const {
  MutexLock lock(report_->mutex);
  return report_->arrivals;
}

std::vector<std::string> MemoryWorker::texts() const {
  std::vector<std::string> texts;
  for (const Arrival& arrival : arrivals()) {
    texts.push_back(arrival.text);
  }
  return texts;
}

std::vector<std::string> MemoryWorker::deaths() const {
  MutexLock lock(report_->mutex);
  return report_->deaths;
}

std::vector<std::string> MemoryWorker::declaredDead() const {
  MutexLock lock(report_->mutex);
  return report_->declaredDead;
}

std::vector<std::string> MemoryWorker::sessionTurns() const {
  MutexLock lock(report_->mutex);
  return report_->sessionTurns;
}

std::vector<MemoryWorker::Loss> MemoryWorker::losses() const {
  MutexLock lock(report_->mutex);
  return report_->losses;
}

PeerStatus MemoryWorker::statusOf(const MemoryWorker& peer) const {
  for (const PeerStatus& status : links_->status()) {
    if (status.record.id == peer.record().id) {
      return status;
    }
  }
  throw std::logic_error(record_.describe() + " knows no " + peer.record().describe());
}

void introduce(MemoryWorker& a, MemoryWorker& b) {
  a.links().addPeer(b.record());
  b.links().addPeer(a.record());
  a.start();
  b.start();
}

// ---- a raw peer ---------------------------------------------------------------------------------

struct RawPeer::State {
  explicit State(Notifier& n) : notifier(n) {}

  Notifier& notifier;
  mutable Mutex mutex{LockRank::test};
  std::vector<IncomingFrame> frames GUARDED_BY(mutex);
  Error error GUARDED_BY(mutex);
};

RawPeer::RawPeer(Notifier& notifier, std::shared_ptr<Link> link)
    : link_(std::move(link)), state_(std::make_shared<State>(notifier)) {
  listen(state_, link_);
}

RawPeer RawPeer::dial(World& world, const MemoryWorker& to) {
  LinkContext& own = world.network.context("memory://raw");
  return RawPeer(world.ledger.notifier(), own.dial(to.record()));
}

void RawPeer::listen(const std::shared_ptr<State>& state, const std::shared_ptr<Link>& link) {
  link->receive([state, weak = std::weak_ptr<Link>(link)](const Error& error, IncomingFrame frame) {
    {
      MutexLock lock(state->mutex);
      if (error) {
        state->error = error;
      } else {
        state->frames.push_back(std::move(frame));
      }
    }
    state->notifier.notify();
    const auto again = weak.lock();
    if (!error && again) {
      listen(state, again);
    }
  });
}

void RawPeer::say(OutgoingFrame frame) {
  link_->send(std::move(frame), [](const Error&) {});
}

void RawPeer::close() {
  link_->close();
}

std::vector<FrameKind> RawPeer::heard() const {
  std::vector<FrameKind> kinds;
  MutexLock lock(state_->mutex);
  for (const IncomingFrame& frame : state_->frames) {
    kinds.push_back(kindOf(frame));
  }
  return kinds;
}

IncomingFrame RawPeer::lastFrame() const {
  MutexLock lock(state_->mutex);
  return state_->frames.at(state_->frames.size() - 1);
}

Error RawPeer::error() const {
  MutexLock lock(state_->mutex);
  return state_->error;
}

} // namespace torchwire
