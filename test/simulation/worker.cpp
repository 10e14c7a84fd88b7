// Worker: starting, calls, requests and leaving.
#include "test/simulation/worker.h"

#include <exception>
#include <utility>

namespace torchwire::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kLongestPause{5000};
constexpr milliseconds kNestedTimeout{20000};
constexpr milliseconds kIdleLook{50};

WorkerRecord recordOf(const ProcessFacts& process, const std::string& address) {
  WorkerRecord record;
  record.name = "w" + std::to_string(process.slot);
  record.id = process.slot;
  record.incarnation = process.incarnation;
  record.address = address;
  record.torchVersion = "2.11.0";
  record.protocolVersion = kProtocolVersion;
  return record;
}

LinkManager::Limits limitsOf(const Settings& settings) {
  LinkManager::Limits limits;
  limits.sessionTimeout = settings.sessionTimeout;
  limits.sessionBytes = settings.sessionBytes;
  return limits;
}

/// A number from which on ids count that no other process gives.
int64_t firstId(Random& random) {
  return (int64_t{1} << 40) + static_cast<int64_t>(random.next() >> 20U);
}

} // namespace

Worker::Worker(World& world, size_t number, const std::string& address)
    : world_(world),
      number_(number),
      owner_(world.queue.addOwner()),
      random_(world.settings.seed, 100000 + world.oracle.process(number).incarnation),
      record_(recordOf(world.oracle.process(number), address)),
      timer_(world.queue, owner_),
      context_(world.network.context(record_.id, owner_, address)),
      links_(std::make_shared<LinkManager>(*context_, timer_, events(), limitsOf(world.settings))),
      calls_(
          std::make_unique<CallTable>(
              timer_, world.bug == Bug::sameCallIds ? 1 : (random_.next() >> 2U) + 1)),
      rrefs_(
          world, *this, record_.id, firstId(random_),
          [this](WorkerId id) {
            const auto known = known_.find(id);
            return known == known_.end() ? uint64_t{0} : known->second.incarnation;
          }),
      contexts_(world, *this, record_.id, firstId(random_) & ((int64_t{1} << 47) - 1)) {
  membership_ = std::make_unique<Membership>(
      std::make_unique<StoreAccess>(world.store, storeFailures_), record_, 0, milliseconds(60000),
      std::make_unique<SystemClock>(),
      [this](const WorkerRecord& worker, bool asksHost) { return hasEnded(worker, asksHost); });
}

Worker::~Worker() {
  world_.queue.end(owner_);
  world_.network.endProcess(owner_);
  loopback_->close(); // whose pending receive holds the links, which hold it
}

bool Worker::start() {
  try {
    const uint64_t groupId = membership_->agree({}).front().groupId();
    links_->listen();
    links_->addLoopback(record_, loopback_);
    const Roster roster = membership_->join(record_.address);
    links_->setGroup(record_, groupId);
    for (const WorkerRecord& peer : roster.workers) {
      if (peer.id != record_.id) {
        learn(peer);
        links_->addPeer(peer);
      }
    }
    for (const WorkerRecord& peer : roster.workers) { // as the agent does, once all are known
      if (peer.id != record_.id) {
        watch(peer);
      }
    }
    links_->acceptPeers();
  } catch (const std::exception& e) {
    world_.note([&] { return record_.name + " cannot start: " + e.what(); });
    return false;
  }
  for (const WorkerId peer : peers()) {
    ++pendingSends_;
    links_->connect(peer, [this](const Error&) { --pendingSends_; });
  }
  return true;
}

void Worker::learn(const WorkerRecord& peer) {
  known_[peer.id] = peer;
  everKnown_.insert(peer.incarnation);
}

std::vector<WorkerId> Worker::peers() const {
  std::vector<WorkerId> all;
  all.reserve(known_.size());
  for (const auto& [id, record] : known_) {
    all.push_back(id);
  }
  return all;
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
  CallFacts facts;
  facts.caller = number_;
  facts.to = to;
  facts.callee = to == record_.id ? number_ : world_.oracle.numberOf(known_.at(to).incarnation);
  facts.timeout = terms.timeout;
  facts.what = nameOf(message.kind);
  facts.sure = terms.sure;
  const uint64_t number = message.call = world_.oracle.called(std::move(facts));
  auto passed = rrefs_.noteSent(to, message);
  Undo undo;
  if (!passed.empty()) {
    undo =
        Undo([this, passed] { later(Duration(0), [this, passed] { rrefs_.takeBack(passed); }); });
    done = [undo, then = std::move(done)](const Error& error) {
      undo.unlessSent(error);
      then(error);
    };
  }
  active_.emplace(number, std::move(done));
  OutgoingFrame frame = message.encode(FrameKind::request);
  frame.undo = world_.bug == Bug::keepsForksOfLost ? Undo() : std::move(undo);
  const auto given = world_.bug == Bug::endsLate ? 3 * terms.timeout : terms.timeout;
  const uint64_t callId =
      calls_->open(to, {given}, [this, number](const Outcome& outcome) { onEnd(number, outcome); });
  setCallId(frame, callId);
  ++pendingSends_;
  links_->send(to, std::move(frame), [this, callId](const Error& error) {
    --pendingSends_;
    if (error) {
      calls_->fail(callId, error);
    }
  });
  return number;
}

/// What goes on after a call does so on another thread, in the product.
void Worker::onEnd(uint64_t number, const Outcome& outcome) {
  if (world_.bug == Bug::dropsCompletion && outcome.error) {
    return;
  }
  Error error = told(outcome.error);
  world_.note([&] {
    return record_.name + ": call " + std::to_string(number) +
        (error ? " failed: " + error.message() : " was answered");
  });
  const Message answer = error ? Message() : Message::decode(outcome.response);
  world_.oracle.ended(number, error, answer.call);
  if (answer.failed) {
    error = Error(ErrorCode::raised, "it was not done", Executed::yes);
  }
  later(microseconds(random_.below(100)), [this, number, error] {
    const auto node = active_.extract(number);
    node.mapped()(error);
  });
}

Error Worker::told(const Error& error) const {
  if (error.code() != ErrorCode::linkBroken) {
    return error;
  }
  return world_.bug == Bug::saysNotSent ? error.notSent()
      : world_.bug == Bug::saysHasRun   ? error.onlyAnswerLost()
                                        : error;
}

// ---- requests that are repeated -----------------------------------------------------------------

void Worker::keepBooks(WorkerId to, Message message, std::function<void()> done) {
  if (rrefs_.deletesOrphan(message)) {
    later(Duration(0), [done = std::move(done)] { done(); });
    return;
  }
  ++pendingBooks_;
  trySend({to, links_->incarnationOf(to), std::move(message), [this, done = std::move(done)] {
             --pendingBooks_;
             done();
           }});
}

void Worker::trySend(Books books) {
  // It has left, or another process is in its place.
  if (!knows(books.to) || links_->incarnationOf(books.to) != books.incarnation) {
    later(Duration(0), [done = std::move(books.done)] { done(); });
    return;
  }
  const WorkerId to = books.to;
  const Message message = books.message;
  request(to, message, {}, [this, books = std::move(books)](const Error& error) {
    onBooksEnd(books, error);
  });
}

void Worker::onBooksEnd(Books books, const Error& error) {
  const bool isGone = error.code() == ErrorCode::workerDied || error.code() == ErrorCode::peerLeft;
  const bool deletesOnce =
      world_.bug == Bug::deletesOnce && books.message.kind == MessageKind::userDelete;
  if (!error || isGone || deletesOnce) {
    books.done();
    return;
  }
  const milliseconds pause = books.pause;
  books.pause = std::min(2 * pause, kLongestPause);
  later(pause, [this, books = std::move(books)]() mutable { trySend(std::move(books)); });
}

// ---- serving ------------------------------------------------------------------------------------

void Worker::serve(WorkerId from, const ReceivedFrame& frame) {
  const Message request = Message::decode(frame);
  const uint64_t callId = frame.header.callId;
  const auto wait = microseconds(random_.below(random_.oneIn(30) ? 20000 : 60));
  later(wait, [this, from, callId, request, incarnation = frame.incarnation] {
    if (!links_->isFormer(from, incarnation)) {
      run(from, callId, request);
    }
  });
  if (world_.bug == Bug::servesTwice && random_.oneIn(200)) {
    later(wait, [this, from, callId, request] { run(from, callId, request); });
  }
}

void Worker::run(WorkerId from, uint64_t callId, const Message& request) {
  world_.note([&] {
    return record_.name + ": runs call " + std::to_string(request.call) + " of w" +
        std::to_string(from) + " (" + nameOf(request.kind) + ")";
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
  Message answer;
  answer.call = number;
  answer.failed = failed;
  OutgoingFrame frame = answer.encode(FrameKind::response);
  setCallId(frame, callId);
  ++pendingSends_;
  links_->sendIfConnected(to, std::move(frame), [this](const Error&) { --pendingSends_; });
}

// ---- leaving ------------------------------------------------------------------------------------

void Worker::leave(std::function<void()> left) {
  leaving_ = true;
  leavingSince_ = world_.queue.now();
  contexts_.closeAll();
  leaveWhenIdle(std::move(left));
}

void Worker::leaveWhenIdle(std::function<void()> left) {
  // Also what has been handed to it meanwhile; and after a while those that keep others' alive.
  rrefs_.dropAll(world_.queue.now() > leavingSince_ + kLongestPause);
  later(kIdleLook, [this, left = std::move(left)]() mutable {
    if (!active_.empty() || pendingBooks_ > 0 || !rrefs_.users().empty()) {
      leaveWhenIdle(std::move(left));
      return;
    }
    try {
      membership_->leave();
    } catch (const std::exception& e) {
      world_.note([&] { return record_.name + ": " + e.what(); });
      notRemoved_.insert(record_.incarnation);
    }
    links_->leave(milliseconds(0));
    world_.queue.after(Duration(0), EventQueue::kNobody, [left = std::move(left)] { left(); });
  });
}

} // namespace torchwire::simulation
