#include "backend/transport/connector.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "backend/base/resource_limits.h"

namespace torchwire {
namespace {

constexpr std::chrono::milliseconds kMaxPause{100};

bool meansNoMemory(int error) {
  return error == ENOMEM || error == ENOBUFS || error == ENOSPC;
}

/// The limit that this process or its host has reached, if that is why.
std::optional<std::string> limitReached(int error, size_t memory) {
  if (const auto files = reachedFileLimit()) {
    return "this process " + *files;
  }
  if (error == EADDRNOTAVAIL) {
    return portLimits();
  }
  return meansNoMemory(error) ? std::optional(memoryLimits(memory)) : std::nullopt;
}

// What is over sooner or later.
bool passesByItself(int error) {
  switch (error) {
    case EAGAIN: // a Unix socket's backlog is full
    case EINTR:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
      return true;
    default:
      return false;
  }
}

bool meansNobodyThere(int error) {
  return error == ECONNREFUSED || error == ENETUNREACH || error == EHOSTUNREACH ||
      error == ETIMEDOUT;
}

} // namespace

Connector::Connector(
    Loop& loop, std::shared_ptr<const KeyRing> keys, const Target& target, Done done,
    DialLimits limits)
    : loop_(loop),
      keys_(std::move(keys)),
      target_(target),
      done_(std::move(done)),
      limits_(limits),
      retry_(loop),
      deadline_(loop) {}

void Connector::start() {
  loop_.expectOnLoop();
  deadline_.start(limits_.patience, [this] { giveUp(ErrorCode::unreachable, lastReason_); });
  attempt();
}

void Connector::attempt() {
  stage_ = Stage::connecting;
  try {
    memory_.reset();
    if (target_.memorySize != 0) {
      memory_.emplace(MemoryFile::create(target_.memorySize));
    }
  } catch (const std::system_error& e) { // no files or no memory left, most likely
    tryAgain(e.what(), e.code().value());
    return;
  } catch (const std::exception& e) {
    tryAgain(e.what());
    return;
  }
  socket_ =
      Descriptor(::socket(target_.address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int error = 0;
  if (socket_.get() < 0 ||
      connect(socket_.get(), target_.address.get(), target_.address.size()) != 0) {
    error = errno;
  }
  if (error != 0 && error != EINPROGRESS) {
    failed(error);
    return;
  }
  try {
    watch_ = std::make_unique<FdWatch>(loop_, socket_.get(), [this] { onReady(); });
  } catch (const std::exception& e) {
    tryAgain(e.what());
    return;
  }
  watch_->want(FdWatch::writable);
}

// Each of the following may end in the connector's destruction, so nothing comes after the last call.

void Connector::onReady() {
  if (stage_ == Stage::connecting) {
    onConnected();
    return;
  }
  const Progress progress = incoming_.receive(socket_.get());
  if (!progress.error.empty()) { // rejected in favor of others, most likely
    tryAgain(progress.error);
  } else if (incoming_.isComplete()) {
    stage_ == Stage::awaitingChallenge ? onChallenge() : onAuthResult();
  }
}

void Connector::onConnected() {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  const char* objection = error == 0 ? objectionToPeer() : nullptr;
  if (objection != nullptr) {
    giveUp(ErrorCode::unreachable, objection);
  } else if (error == 0) {
    const bool mayBeSealed = target_.medium == Medium::tcp;
    initiator_.emplace(
        keys_->current(), target_.medium, target_.lane,
        HandshakeTerms{
            .address = target_.address.describe(),
            .dialer = target_.dialer,
            .sealing = mayBeSealed ? sealingOf(target_.encryption, socket_.get()) : Sealing::off});
    send(initiator_->greet(), kChallengeSize, Stage::awaitingChallenge);
  } else {
    failed(error);
  }
}

/// To connect has failed so.
void Connector::failed(int error) {
  if (passesByItself(error) || meansNobodyThere(error) || limitReached(error, 0)) {
    tryAgain(std::strerror(error), error);
  } else {
    giveUp(ErrorCode::unreachable, std::strerror(error));
  }
}

/// Why nothing must be said to whoever has answered, or null.
const char* Connector::objectionToPeer() const {
  if (target_.medium == Medium::tcp) {
    // TCP allows that, if the port dialed is free and chosen for this side too.
    const bool self =
        SocketAddress::ofSocket(socket_.get()).describe() == target_.address.describe();
    return self ? "nobody listens there" : nullptr;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
  return peer.uid == geteuid() ? nullptr : "another user listens there";
}

void Connector::onChallenge() {
  const HandshakeInitiator::Step step = initiator_->answerChallenge(incoming_.bytes());
  if (!step.refusal.empty()) {
    onRefusal(step.refusal);
    return;
  }
  send(step.send, kAuthResultSize, Stage::awaitingAuthResult, memory_ ? memory_->descriptor() : -1);
}

void Connector::onAuthResult() {
  if (const auto refusal = initiator_->judge(incoming_.bytes())) {
    onRefusal(*refusal);
    return;
  }
  if (memory_) {
    memory_->closeDescriptor();
  }
  finish(Error(), {socket_.take(), std::move(memory_), initiator_->sealedBy()});
}

void Connector::send(const HandshakeBytes& message, size_t expected, Stage next, int descriptor) {
  if (!sendAll(socket_.get(), message, descriptor)) {
    tryAgain("it closed the connection during the handshake");
    return;
  }
  stage_ = next;
  incoming_ = HandshakeSocket(expected);
  watch_->want(FdWatch::readable);
}

void Connector::onRefusal(const std::string& refusal) {
  if (refusal == describe(Answer::outOfFiles) || refusal == describe(Answer::outOfMemory)) {
    waitAtLimit(refusal, ErrorCode::atLimit);
  } else {
    giveUp(ErrorCode::notAdmitted, refusal);
  }
}

/// A process, or this host, has reached that limit.
void Connector::waitAtLimit(const std::string& limit, ErrorCode code) {
  watch_.reset();
  socket_ = Descriptor();
  const Clock::time_point now = Clock::now();
  atLimit_ = atLimit_.value_or(now);
  if (now - *atLimit_ >= limits_.limitPatience) {
    giveUp(code, limit);
    return;
  }
  lastReason_ = limit;
  retry_.start(pause_, [this] { attempt(); });
  pause_ = std::min(2 * pause_, kMaxPause);
}

void Connector::tryAgain(const std::string& reason, int error) {
  watch_.reset();
  socket_ = Descriptor();
  memory_.reset();
  if (const auto limit = limitReached(error, target_.memorySize)) {
    waitAtLimit(*limit, ErrorCode::atLimit);
    return;
  }
  atLimit_.reset();
  lastReason_ = reason;
  if (meansNobodyThere(error) && Clock::now() - begin_ >= limits_.refusedPatience) {
    // A Unix socket's name may belong to another namespace of the same host.
    const bool refused = error == ECONNREFUSED && target_.medium == Medium::tcp;
    giveUp(refused ? ErrorCode::nobodyListens : ErrorCode::unreachable, reason);
    return;
  }
  retry_.start(pause_, [this] { attempt(); });
  pause_ = std::min(2 * pause_, kMaxPause);
}

void Connector::giveUp(ErrorCode code, const std::string& reason) {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_);
  const std::string medium = target_.medium == Medium::shm
      ? "wire_shm, which reaches workers of the same user on the same host only,"
      : "wire_tcp";
  finish(
      Error(
          code,
          (code == ErrorCode::notAdmitted ? "refused by " : "cannot connect to ") +
              target_.address.describe() + " over " + medium + " (tried for " +
              std::to_string(waited.count()) + " ms): " + reason),
      {-1, std::nullopt, std::nullopt});
}

void Connector::finish(const Error& error, Reached reached) {
  loop_.expectOnLoop();
  watch_.reset();
  socket_ = Descriptor();
  deadline_.stop();
  retry_.stop();
  const Done done = std::move(done_);
  done(error, std::move(reached));
}

} // namespace torchwire
