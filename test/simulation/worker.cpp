// Worker: starting, calls, requests and leaving.
#include "test/simulation/worker.h"

#include <exception>
#include <utility>

#include "backend/wire/own_requests.h"
#include "test/simulation/bug.h"

namespace torchwire::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kForcedDrop{5000}; // after a leave has begun
constexpr milliseconds kNestedTimeout{20000};
constexpr milliseconds kIdleLook{50};
// Of a process that finds that it has been declared dead.
constexpr int kLongestLife = 2000; // milliseconds

WorkerRecord recordOf(const ProcessFacts& process, const std::string& address, bool sharesHosts) {
  WorkerRecord record;
  record.name = "w" + std::to_string(process.slot);
  record.id = process.slot;
  record.incarnation = process.incarnation;
  record.address = address;
  record.torchVersion = "2.11.0";
  record.protocolVersion = kProtocolVersion;
  record.process.boot = "host" + std::to_string(sharesHosts ? 0 : process.slot);
  record.process.pid = static_cast<int32_t>(process.incarnation);
  return record;
}

/// A number from which on ids count that no other process gives.
int64_t firstId(Random& random) {
  return (int64_t{1} << 40) + static_cast<int64_t>(random.next() >> 20U);
}

} // namespace

Worker::Worker(World& world, size_t number, const std::string& address, Over over)
    : world_(world),
      number_(number),
      owner_(world.queue.addOwner()),
      random_(world.settings.seed, 100000 + world.oracle.process(number).incarnation),
      record_(recordOf(world.oracle.process(number), address, world.settings.sharesHosts)),
      over_(std::move(over)),
      timer_(world.queue, owner_),
      context_(world.network.context(record_.id, owner_, address)),
      processes_(
          record_.process,
          {[this](int32_t pid) { return world_.oracle.hasEnded(static_cast<uint64_t>(pid)); },
           [this](std::function<void()> task) {
             later(microseconds(random_.below(2000)), std::move(task));
           }}),
      membership_(
          std::make_unique<StoreAccess>(world.store, storeFailures_, storeNotes()), record_, 0,
          storeTimeout(), std::make_unique<SystemClock>(),
          [this](const WorkerRecord& worker, bool asksHost) { return hasEnded(worker, asksHost); }),
      node_(nodeSettings(), nodeParts()),
      books_(booksWorker()),
      rrefs_(
          world, *this, record_.id, firstId(random_),
          [this](WorkerId id) { return node_.links()->incarnationOf(id); }),
      contexts_(*this, record_.id, firstId(random_) & ((int64_t{1} << 47) - 1)) {
  node_.open(*context_, processes_, membership_);
}

Worker::~Worker() {
  world_.queue.end(owner_);
  world_.network.endProcess(owner_);
  loopback_->close(); // whose pending receive holds the links, which hold it
}

bool Worker::start() {
  try {
    membership_.agree({});
    node_.links()->listen();
    node_.links()->addLoopback(record_, loopback_);
    const Roster roster = membership_.join(record_.address);
    for (const WorkerRecord& peer : roster.workers) {
      if (peer.id != record_.id) {
        learn(peer);
      }
    }
    node_.begin(roster);
  } catch (const std::exception& e) {
    world_.note([&] { return record_.name + " cannot start: " + e.what(); });
    return false;
  }
  for (const WorkerId peer : peers()) {
    ++pendingSends_;
    node_.links()->connect(peer, [this](const Error&) { --pendingSends_; });
  }
  return true;
}

void Worker::learn(const WorkerRecord& peer) {
  known_.insert(peer.id);
  everKnown_.insert(peer.incarnation);
}

std::vector<WorkerId> Worker::peers() const {
  return {known_.begin(), known_.end()};
}

void Worker::later(Duration delay, Task task) {
  world_.queue.after(delay, owner_, std::move(task));
}

// ---- calls --------------------------------------------------------------------------------------

void Worker::call(const CallOrder& order, Done done) {
  Message message;
  message.then = order.then;
  message.padding = order.padding;
  request(order.to, message, order.terms, std::move(done));
}

uint64_t Worker::request(WorkerId to, Message message, Terms terms, Done done) {
  return send(
      to, std::move(message), terms, [done = std::move(done)](const torchwire::Outcome& outcome) {
        const bool failed =
            !outcome.error && own_requests::isError(outcome.response.header.messageType);
        done(failed ? Error(ErrorCode::raised, "it was not done", Executed::yes) : outcome.error);
      });
}

uint64_t Worker::send(WorkerId to, Message message, Terms terms, Completion completion) {
  CallFacts facts;
  facts.caller = number_;
  facts.to = to;
  facts.callee =
      to == record_.id ? number_ : world_.oracle.numberOf(node_.links()->incarnationOf(to));
  facts.timeout = terms.timeout;
  facts.what = simulation::nameOf(message.kind);
  facts.sure = terms.sure;
  const uint64_t number = message.call = world_.oracle.called(std::move(facts));
  CallTable::Options options;
  options.timeout = planted(Bug::endsLate) ? 3 * terms.timeout : terms.timeout;
  OutgoingFrame frame = message.encode();
  auto passed = rrefs_.noteSent(to, message);
  if (!passed.empty()) {
    options.undo =
        Undo([this, passed] { later(Duration(0), [this, passed] { rrefs_.takeBack(passed); }); });
    frame.undo = planted(Bug::keepsForksOfLost) ? Undo() : options.undo;
  }
  active_.emplace(number, std::move(completion));
  node_.requests().call(
      to, std::move(options), std::move(frame),
      [this, number](torchwire::Outcome outcome) { onEnd(number, std::move(outcome)); });
  return number;
}

/// What goes on after a call does so on another thread, in the product.
void Worker::onEnd(uint64_t number, torchwire::Outcome outcome) {
  const Error& error = outcome.error;
  if (planted(Bug::dropsCompletion) && error) {
    return;
  }
  world_.note([&] {
    return record_.name + ": call " + std::to_string(number) +
        (error ? " failed: " + error.message() : " was answered");
  });
  world_.oracle.ended(number, error, error ? 0 : answeredIn(ReceivedFrame(outcome.response)));
  if (error.code() == ErrorCode::declaredDead) {
    endIfDeclaredDead();
  }
  later(microseconds(random_.below(100)), [this, number, outcome = std::move(outcome)]() mutable {
    auto call = active_.extract(number);
    call.mapped()(std::move(outcome));
  });
}

void Worker::keepBooks(WorkerId to, Message message, std::function<void()> done) {
  if (rrefs_.deletesOrphan(message)) {
    later(Duration(0), [done = std::move(done)] { done(); });
    return;
  }
  ++pendingBooks_;
  books_.send(
      to,
      [this, to, message = std::move(message)](Completion completed) {
        send(to, message, {}, std::move(completed));
      },
      [this, done = std::move(done)](RetriedRequests::Ended) {
        --pendingBooks_;
        done();
      });
}

// ---- serving ------------------------------------------------------------------------------------

bool Worker::serve(WorkerId from, ReceivedFrame frame) {
  const uint64_t callId = frame.header.callId;
  const uint64_t incarnation = frame.incarnation;
  const auto wait = microseconds(random_.below(random_.oneIn(30) ? 20000 : 60));
  later(wait, [this, from, callId, incarnation, request = Message::decode(std::move(frame))] {
    if (!node_.links()->isFormer(from, incarnation)) {
      run(from, callId, request);
    }
  });
  return true;
}

void Worker::run(WorkerId from, uint64_t callId, const Message& request) {
  world_.note([&] {
    return record_.name + ": runs call " + std::to_string(request.call) + " of w" +
        std::to_string(from) + " (" + simulation::nameOf(request.kind) + ")";
  });
  world_.oracle.ran(request.call, number_);
  const auto answer = [this, from, callId, number = request.call] {
    respond(from, callId, number);
  };
  switch (request.kind) {
    case MessageKind::call:
      runCall(from, request, answer);
      return;
    case MessageKind::create:
      rrefs_.serveCreation(from, request, answer);
      return;
    case MessageKind::pass:
      later(microseconds(random_.below(5000)), [letGo = rrefs_.receive(request), answer] {
        letGo();
        answer();
      });
      return;
    case MessageKind::forkRequest:
      rrefs_.serveForkRequest(from, request);
      break;
    case MessageKind::childAccept:
      rrefs_.serveChildAccept(request);
      break;
    case MessageKind::userDelete:
      rrefs_.serveDelete(request);
      break;
    case MessageKind::release:
      contexts_.serveRelease(
          from, request.context, [this, from, callId, number = request.call](bool everywhere) {
            respond(from, callId, number, !everywhere);
          });
      return;
  }
  answer();
}

void Worker::runCall(WorkerId from, const Message& request, const std::function<void()>& answer) {
  std::function<void()> finish = answer;
  const ContextId context = request.context;
  if (context >= 0) {
    finish = [end = contexts_.begin(from, context), answer] {
      answer();
      end();
    };
  }
  const uint64_t most = !random_.oneIn(20) ? 300 : random_.oneIn(3) ? 20000000 : 1000000;
  const auto takes = microseconds(random_.below(most));
  if (request.then < 0 || (request.then != record_.id && !knows(request.then))) {
    later(takes, [finish] { finish(); });
    return;
  }
  later(takes, [this, context, then = request.then, finish] {
    if (then != record_.id && !knows(then)) {
      finish();
      return;
    }
    Message next;
    next.context = context;
    const Done sent = context >= 0 ? contexts_.send(context, then) : [](const Error&) {};
    this->request(then, next, {kNestedTimeout, false}, [sent, finish](const Error& error) {
      sent(error);
      finish();
    });
  });
}

void Worker::respond(WorkerId to, uint64_t callId, uint64_t number, bool failed) {
  OutgoingFrame frame = answerTo(number, failed);
  setCallId(frame, callId);
  ++pendingSends_;
  node_.links()->sendIfConnected(to, std::move(frame), [this](const Error&) { --pendingSends_; });
}

// ---- its end ------------------------------------------------------------------------------------

void Worker::leave() {
  leaving_ = true;
  leavingSince_ = world_.queue.now();
  contexts_.closeAll();
  leaveWhenIdle();
}

void Worker::leaveWhenIdle() {
  // Also what has been handed to it meanwhile; and after a while those that keep others' alive.
  rrefs_.dropAll(world_.queue.now() > leavingSince_ + kForcedDrop);
  later(kIdleLook, [this] {
    endIfDeclaredDead();
    if (ending_) {
      return;
    }
    if (!active_.empty() || pendingBooks_ > 0 || !rrefs_.users().empty()) {
      leaveWhenIdle();
      return;
    }
    try {
      membership_.leave();
    } catch (const std::exception& e) {
      world_.note([&] { return record_.name + ": " + e.what(); });
      notRemoved_.insert(record_.incarnation);
    }
    node_.links()->leave(milliseconds(0));
    end(true);
  });
}

/// Its program finds that every call fails, and can do nothing else: soon, but not at once.
void Worker::endIfDeclaredDead() {
  if (!ending_ && node_.links()->declaredDead()) {
    ending_ = true;
    later(milliseconds(random_.below(kLongestLife)), [this] { end(false); });
  }
}

void Worker::end(bool inOrder) {
  world_.queue.after(Duration(0), EventQueue::kNobody, [over = over_, inOrder] { over(inOrder); });
}

} // namespace torchwire::simulation
