#include "backend/transport/acceptor.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "backend/base/resource_limits.h"
#include "backend/transport/socket_address.h"

namespace torchwire {
namespace {

// Accepted in one go, so that a flood leaves the loop to others in between.
constexpr int kAcceptsAtOnce = 64;
constexpr std::chrono::milliseconds kPauseForFiles{100};
constexpr std::chrono::milliseconds kPauseForRoom{5};

using Clock = std::chrono::steady_clock;

std::string nameOf(const SocketAddress& listening) {
  return listening.family() == AF_UNIX ? "wire_shm (@" + listening.describe() + ")"
                                       : "wire_tcp (" + listening.describe() + ")";
}

Descriptor openReserve() {
  return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

std::string whyWithoutFiles() {
  return "this process " + reachedFileLimit().value_or("had no file left for it");
}

bool isOfThisConnectionOnly(int error) {
  return error == ECONNABORTED || error == EINTR || error == EPROTO || error == EPERM;
}

} // namespace

/// One connection in the handshake.
class Acceptor::PendingHandshake {
 public:
  PendingHandshake(Acceptor& acceptor, int socket, std::string from, bool refuses)
      : acceptor_(acceptor),
        refuses_(refuses),
        socket_(socket),
        from_(std::move(from)),
        responder_(acceptor.keys_->all(), acceptor.place_.medium, acceptor.terms(socket)),
        incoming_(kGreetingSize),
        watch_(std::make_unique<FdWatch>(acceptor.loop_, socket, [this] { onReady(); })),
        deadline_(acceptor.loop_) {
    watch_->want(FdWatch::readable);
    deadline_.start(refuses ? acceptor.limits_.minAge : acceptor.limits_.patience, [this] {
      acceptor_.reject(*this, "it did not finish the handshake in time");
    });
  }
  ~PendingHandshake() {
    watch_.reset();
    if (socket_ >= 0) {
      close(socket_);
    }
  }
  PendingHandshake(const PendingHandshake&) = delete;
  PendingHandshake& operator=(const PendingHandshake&) = delete;

  const std::string& from() const {
    return from_;
  }
  Clock::time_point since() const {
    return since_;
  }
  uint8_t lane() const {
    return responder_.lane();
  }
  uint64_t dialer() const {
    return responder_.dialer();
  }
  std::optional<SealedBy> sealedBy() const {
    return responder_.sealedBy();
  }
  bool refuses() const {
    return refuses_;
  }
  int takeSocket() {
    watch_.reset();
    return std::exchange(socket_, -1);
  }

 private:
  // Each of these may end in the handshake's destruction, so nothing comes after the last call.
  void onReady() {
    const bool withMemory = greeted_ && acceptor_.place_.memorySize != 0;
    const Progress progress = incoming_.receive(socket_, withMemory ? &memory_ : nullptr);
    if (!progress.error.empty() && !greeted_ && incoming_.isEmpty()) {
      acceptor_.forget(
          *this); // it has asked whether somebody listens here, as listener_probe.h does
    } else if (!progress.error.empty()) {
      acceptor_.reject(*this, progress.error);
    } else if (incoming_.isComplete()) {
      greeted_ ? onProof() : onGreeting();
    } else if (!greeted_ && HandshakeResponder::isOfAnotherVersion(incoming_.begun())) {
      onGreeting();
    }
  }

  void onGreeting() {
    HandshakeResponder::Reply reply = refuses_
        ? responder_.refuse(incoming_.begun(), Answer::outOfFiles)
        : responder_.challenge(incoming_.begun(), acceptor_.events_.hasLane);
    if (!sendAll(socket_, reply.send)) {
      acceptor_.reject(*this, "it went away during the handshake");
    } else if (reply.answer != Answer::welcome) {
      acceptor_.reject(*this, describe(reply.answer));
    } else {
      greeted_ = true;
      incoming_ = HandshakeSocket(kProofSize);
    }
  }

  void onProof() {
    Answer answer = responder_.check(incoming_.bytes());
    std::optional<MemoryFile> memory;
    std::string reason = describe(answer);
    if (answer == Answer::welcome && acceptor_.place_.memorySize != 0) {
      if (memory_.get() < 0) { // the system drops it when this process has no files left
        answer = Answer::outOfFiles;
        reason = "no shared memory came with the proof, or no file was left for it here";
      } else {
        try {
          memory.emplace(MemoryFile::adopt(memory_.take(), acceptor_.place_.memorySize));
          memory->closeDescriptor();
        } catch (const std::system_error& e) { // what was checked before is in order
          answer = Answer::outOfMemory;
          reason = std::string(e.what()) + ": " + memoryLimits(acceptor_.place_.memorySize);
        } catch (const std::exception& e) {
          answer = Answer::badMemory;
          reason = e.what();
        }
      }
    }
    if (!sendAll(socket_, responder_.authResult(answer))) {
      acceptor_.reject(*this, "it went away during the handshake");
    } else if (answer != Answer::welcome) {
      acceptor_.reject(*this, reason);
    } else {
      acceptor_.admit(*this, std::move(memory));
    }
  }

  Acceptor& acceptor_;
  const bool refuses_; // for want of files
  int socket_;
  const std::string from_;
  const Clock::time_point since_ = Clock::now();
  HandshakeResponder responder_;
  HandshakeSocket incoming_;
  Descriptor memory_; // that came with the proof
  bool greeted_ = false;
  std::unique_ptr<FdWatch> watch_;
  LoopTimer deadline_;
};

Acceptor::Acceptor(
    Loop& loop, int listeningSocket, std::shared_ptr<const KeyRing> keys, Place place,
    Events events, AcceptorLimits limits)
    : loop_(loop),
      socket_(listeningSocket),
      keys_(std::move(keys)),
      place_(std::move(place)),
      events_(std::move(events)),
      limits_(limits),
      rejections_(nameOf(SocketAddress::ofSocket(listeningSocket))),
      reserve_(openReserve()),
      pause_(loop),
      watch_(std::make_unique<FdWatch>(loop, listeningSocket, [this] { acceptAll(); })) {
  watch_->want(FdWatch::readable);
}

Acceptor::~Acceptor() {
  loop_.expectOnLoop();
  watch_.reset();
  close(socket_);
}

HandshakeTerms Acceptor::terms(int socket) const {
  const bool mayBeSealed = place_.medium == Medium::tcp;
  return {
      .address = place_.address,
      .sealing = mayBeSealed ? sealingOf(place_.encryption, socket) : Sealing::off};
}

void Acceptor::acceptAll() {
  loop_.expectOnLoop();
  for (int i = 0; i < kAcceptsAtOnce && makeRoom() && acceptOne(); ++i) {
  }
}

bool Acceptor::makeRoom() {
  if (pending_.size() < limits_.maxPending) {
    return true;
  }
  PendingHandshake& oldest = *pending_.front();
  if (Clock::now() - oldest.since() < limits_.minAge) {
    pauseAccepting(kPauseForRoom);
    return false;
  }
  reject(oldest, "too many connections are in the handshake, and it has stayed longest");
  return true;
}

bool Acceptor::acceptOne() {
  SocketAddress from;
  const int socket = from.accept(socket_);
  if (socket >= 0) {
    welcome(socket, from);
    return true;
  }
  if (isOfThisConnectionOnly(errno)) {
    return true;
  }
  if (errno == EMFILE || errno == ENFILE) {
    return acceptToRefuse();
  }
  if (errno != EAGAIN && errno != EWOULDBLOCK) { // no memory left, most likely
    rejections_.note("anyone for a moment", std::strerror(errno));
    pauseAccepting(kPauseForFiles);
  }
  return false;
}

// Whoever dials is to hear why, rather than to wait until its time is over. The next one has its turn when this one has
// gone.
bool Acceptor::acceptToRefuse() {
  const bool hadReserve = reserve_.get() >= 0;
  reserve_ = Descriptor();
  SocketAddress from;
  const int socket = hadReserve ? from.accept(socket_) : -1;
  if (socket >= 0) {
    watch_->want(0);
    welcome(socket, from, /*refuses=*/true);
  } else {
    reserve_ = openReserve();
    rejections_.note("anyone for a moment", whyWithoutFiles());
    pauseAccepting(kPauseForFiles);
  }
  return false;
}

void Acceptor::endRefusal() {
  reserve_ = openReserve();
  watch_->want(FdWatch::readable);
}

// Whoever dials waits in the backlog meanwhile.
void Acceptor::pauseAccepting(std::chrono::milliseconds pause) {
  watch_->want(0);
  pause_.start(pause, [this] { watch_->want(FdWatch::readable); });
}

void Acceptor::welcome(int socket, const SocketAddress& address, bool refuses) {
  std::string from = address.describe();
  if (place_.medium == Medium::shm) {
    ucred peer{};
    socklen_t size = sizeof peer;
    getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    from = "process " + std::to_string(peer.pid) + " of user " + std::to_string(peer.uid);
    if (peer.uid != geteuid()) {
      rejections_.note(from, "it runs as another user");
      close(socket);
      if (refuses) {
        endRefusal();
      }
      return;
    }
  }
  try {
    pending_.push_back(std::make_unique<PendingHandshake>(*this, socket, from, refuses));
  } catch (const std::exception& e) {
    rejections_.note(from, e.what());
    close(socket);
    if (refuses) {
      endRefusal();
    }
  }
}

void Acceptor::reject(PendingHandshake& handshake, const std::string& reason) {
  const bool refused = handshake.refuses();
  rejections_.note(handshake.from(), refused ? whyWithoutFiles() : reason);
  forget(handshake);
}

void Acceptor::forget(PendingHandshake& handshake) {
  const bool refused = handshake.refuses();
  pending_.remove_if([&](const auto& each) { return each.get() == &handshake; });
  if (refused) {
    endRefusal();
  }
}

void Acceptor::admit(PendingHandshake& handshake, std::optional<MemoryFile> memory) {
  Admitted peer{
      handshake.takeSocket(), handshake.lane(), handshake.dialer(), std::move(memory),
      handshake.sealedBy()};
  pending_.remove_if([&](const auto& each) { return each.get() == &handshake; });
  events_.admitted(std::move(peer));
}

} // namespace torchwire
