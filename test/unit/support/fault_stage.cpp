#include "test/unit/support/fault_stage.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <sstream>
#include <thread>
#include <utility>

#include "backend/link/loopback_link.h"

namespace torchwire::faults {

OutgoingFrame callFrame(FrameKind kind, uint32_t type, uint64_t callId, const std::string& text) {
  OutgoingFrame frame;
  ByteWriter out(frame.head);
  FrameHeader{
      .kind = kind, .flags = 1, .messageType = type, .callId = callId, .bodyLength = text.size()}
      .write(out);
  out.raw(text.data(), text.size());
  out.number(uint32_t{0});
  return frame;
}

Rule ruleOf(Action action, Phase phase) {
  Rule rule;
  rule.name = nameOf(action);
  rule.action = action;
  rule.phase = phase;
  return rule;
}

Plan planOf(std::vector<Rule> rules, uint64_t seed) {
  Plan plan;
  plan.revision = 1;
  plan.seed = seed;
  plan.rules = std::move(rules);
  return plan;
}

void FakeProcess::pause(double seconds) {
  std::ostringstream deed;
  deed << "pause " << seconds;
  MutexLock lock(mutex_);
  deeds_.push_back(deed.str());
}

void FakeProcess::kill() {
  MutexLock lock(mutex_);
  deeds_.emplace_back("kill");
}

std::vector<std::string> FakeProcess::deeds() const {
  MutexLock lock(mutex_);
  return deeds_;
}

// ---- the ear ------------------------------------------------------------------------------------

struct Ear::State {
  State(Notifier& n, OnRequest r) : notifier(n), onRequest(std::move(r)) {}

  Notifier& notifier;
  const OnRequest onRequest;
  mutable Mutex mutex{LockRank::test};
  std::vector<Heard> heard GUARDED_BY(mutex);
  Error error GUARDED_BY(mutex);
};

Ear::Ear(Notifier& notifier, std::shared_ptr<Link> link, OnRequest onRequest)
    : state_(std::make_shared<State>(notifier, std::move(onRequest))) {
  listen(state_, link);
}

void Ear::listen(const std::shared_ptr<State>& state, const std::shared_ptr<Link>& link) {
  link->receive([state, weak = std::weak_ptr(link)](const Error& error, IncomingFrame frame) {
    const auto again = weak.lock();
    Heard heard;
    bool readable = false;
    if (!error) {
      ByteReader in(frame.head);
      try {
        heard.header = FrameHeader::read(in);
        readable = true;
      } catch (const FormatError&) {
      }
      const bool hasText = readable && heard.header.bodyLength <= in.remaining();
      heard.text = hasText ? textOf(frame) : "unreadable";
      heard.frame = std::move(frame);
    }
    {
      MutexLock lock(state->mutex);
      if (error) {
        state->error = error;
      } else {
        state->heard.push_back(heard);
      }
    }
    state->notifier.notify();
    if (error || !again) {
      return;
    }
    if (state->onRequest && readable && heard.header.kind == FrameKind::request) {
      state->onRequest(*again, heard);
    }
    listen(state, again);
  });
}

std::vector<std::string> Ear::texts(FrameKind kind) const {
  std::vector<std::string> texts;
  for (const Heard& heard : all()) {
    if (heard.header.kind == kind) {
      const bool isException = heard.header.messageType == kException;
      texts.push_back((isException ? "! " : "") + heard.text);
    }
  }
  return texts;
}

std::vector<Ear::Heard> Ear::all() const {
  MutexLock lock(state_->mutex);
  return state_->heard;
}

Error Ear::error() const {
  MutexLock lock(state_->mutex);
  return state_->error;
}

// ---- the stage ----------------------------------------------------------------------------------

const char* nameOf(StageKind kind) {
  switch (kind) {
    case StageKind::pumped:
      return "pumped";
    case StageKind::synchronous:
      return "synchronous";
    case StageKind::threaded:
      return "threaded";
    case StageKind::self:
      return "self";
  }
  return "";
}

namespace {

MemoryNetwork::Style styleOf(StageKind kind) {
  switch (kind) {
    case StageKind::synchronous:
      return MemoryNetwork::Style::synchronous;
    case StageKind::threaded:
      return MemoryNetwork::Style::threaded;
    default:
      return MemoryNetwork::Style::pumped;
  }
}

WorkerRecord recordNamed(const std::string& name) {
  WorkerRecord record = recordOf(0);
  record.name = name;
  record.address = "memory://" + name;
  return record;
}

} // namespace

FaultStage::FaultStage(StageKind kind, const Plan& plan, bool answering)
    : kind_(kind),
      world(styleOf(kind)),
      a("a", planOf({})), // no faults before it is set up, unless they are connect's
      b("b", planOf({})),
      caller(
          kind == StageKind::self
              ? FaultyLink::wrap(std::make_shared<LoopbackLink>(), a.injector, world.timer, "a")
              : connect()),
      callee(kind == StageKind::self ? caller : accepted_) {
  Ear::OnRequest onRequest;
  if (answering) {
    onRequest = [this](Link& link, const Ear::Heard& heard) {
      link.send(
          callFrame(FrameKind::response, kAnswer, heard.header.callId, "re " + heard.text),
          world.ledger.expect("answer to " + heard.text));
    };
  }
  calleeEar_ = std::make_unique<Ear>(world.ledger.notifier(), callee, std::move(onRequest));
  if (!isSelf()) {
    callerEar_ = std::make_unique<Ear>(world.ledger.notifier(), caller);
    REQUIRE(until([this] { return calleeEar_->all().size() == 1; })); // the hello
  }
  setPlan(plan);
}

std::shared_ptr<Link> FaultStage::connect() {
  MemoryNetwork& network = world.network;
  contextA_ = std::make_unique<FaultyContext>(
      std::make_unique<BorrowedContext>(network.context("memory://a")), a.injector, world.timer);
  contextB_ = std::make_unique<FaultyContext>(
      std::make_unique<BorrowedContext>(network.context("memory://b")), b.injector, world.timer);
  Mutex mutex{LockRank::test};
  std::shared_ptr<Link> accepted;
  contextB_->listen([&](std::shared_ptr<Link> link) {
    {
      MutexLock lock(mutex);
      accepted = std::move(link);
    }
    world.ledger.notifier().notify();
  });
  auto link = contextA_->dial(recordNamed("b"));
  Hello hello;
  hello.self = recordNamed("a");
  link->send(hello.encode(FrameKind::hello), world.ledger.expect("hello"));
  REQUIRE(until([&] {
    MutexLock lock(mutex);
    return accepted != nullptr;
  }));
  accepted_ = accepted;
  return link;
}

FaultStage::~FaultStage() {
  world.timer.stop();
  caller->close();
  if (!isSelf()) {
    contextA_->join();
    contextB_->join();
  }
}

CallbackNote& FaultStage::call(const std::string& text, uint32_t type) {
  return send(callFrame(FrameKind::request, type, ++calls_, text));
}

CallbackNote& FaultStage::send(OutgoingFrame frame) {
  CallbackNote& note = world.ledger.note("send");
  caller->send(std::move(frame), CallbackLedger::expect(note));
  return note;
}

CallbackNote& FaultStage::answer(uint64_t callId, const std::string& text) {
  CallbackNote& note = world.ledger.note("answer");
  callee->send(callFrame(FrameKind::response, kAnswer, callId, text), CallbackLedger::expect(note));
  return note;
}

std::vector<std::string> FaultStage::served() const {
  return calleeEar_->texts(FrameKind::request);
}

std::vector<std::string> FaultStage::answers() const {
  return (isSelf() ? calleeEar_ : callerEar_)->texts(FrameKind::response);
}

std::vector<IncomingFrame> FaultStage::arrived() const {
  std::vector<IncomingFrame> frames;
  for (const Ear::Heard& heard : calleeEar_->all()) {
    if (heard.header.kind == FrameKind::request) {
      frames.push_back(heard.frame);
    }
  }
  return frames;
}

std::vector<std::string> FaultStage::logged() const {
  std::vector<std::string> all;
  for (const FaultyWorker* worker : {&a, &b}) {
    for (const Entry& entry : worker->log->entries()) {
      all.push_back(
          std::string(nameOf(entry.action)) + " " + nameOf(entry.phase) + " " +
          std::to_string(entry.occurrence));
    }
  }
  return all;
}

bool FaultStage::settled(const std::function<bool()>& holds) {
  for (int i = 0; i < 10; ++i) {
    if (kind_ != StageKind::threaded) {
      world.network.deliverAll();
    }
    if (!holds()) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool FaultStage::untilLogged(const std::vector<std::string>& expected) {
  const auto end = std::chrono::steady_clock::now() + Notifier::kPatience;
  while (logged() != expected && std::chrono::steady_clock::now() < end) {
    if (kind_ != StageKind::threaded) {
      world.network.deliverAll();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return logged() == expected;
}

void FaultStage::setPlan(const Plan& plan) {
  b.injector->setPlan(plan); // first, so that it is in force for what a lets go
  a.injector->setPlan(plan);
}

} // namespace torchwire::faults
