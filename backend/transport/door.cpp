#include "backend/transport/door.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "backend/transport/handshake_socket.h"
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

bool isOfThisConnectionOnly(int error) {
  return error == ECONNABORTED || error == EINTR || error == EPROTO || error == EPERM;
}

} // namespace

/// One connection in the handshake.
class Door::Guest {
 public:
  Guest(Door& door, int socket, std::string from)
      : door_(door),
        socket_(socket),
        from_(std::move(from)),
        porter_(door.key_, door.medium_),
        incoming_(kGreetingSize),
        watch_(std::make_unique<FdWatch>(door.loop_, socket, [this] { onReady(); })),
        deadline_(door.loop_) {
    watch_->want(FdWatch::readable);
    deadline_.start(door.limits_.patience, [this] {
      door_.letGo(*this, "it did not finish the handshake in time");
    });
  }
  ~Guest() {
    watch_.reset();
    if (socket_ >= 0) {
      close(socket_);
    }
  }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

  const std::string& from() const {
    return from_;
  }
  Clock::time_point since() const {
    return since_;
  }
  uint8_t lane() const {
    return porter_.lane();
  }
  int takeSocket() {
    watch_.reset();
    return std::exchange(socket_, -1);
  }

 private:
  // Each of these may end in the guest's destruction, so nothing comes after the last call.
  void onReady() {
    const bool withMemory = greeted_ && door_.memorySize_ != 0;
    const Progress progress = incoming_.receive(socket_, withMemory ? &memory_ : nullptr);
    if (!progress.error.empty()) {
      door_.letGo(*this, progress.error);
    } else if (incoming_.isComplete()) {
      greeted_ ? onProof() : onGreeting();
    }
  }

  void onGreeting() {
    Porter::Reply reply = porter_.challenge(incoming_.bytes(), door_.events_.hasLane);
    if (!sendAll(socket_, reply.send)) {
      door_.letGo(*this, "it went away during the handshake");
    } else if (reply.answer != Answer::welcome) {
      door_.letGo(*this, describe(reply.answer));
    } else {
      greeted_ = true;
      incoming_ = HandshakeSocket(kProofSize);
    }
  }

  void onProof() {
    Answer answer = porter_.check(incoming_.bytes()) ? Answer::welcome : Answer::wrongProof;
    std::optional<MemoryFile> memory;
    std::string reason = describe(answer);
    if (answer == Answer::welcome && door_.memorySize_ != 0) {
      if (memory_.get() < 0) { // the system drops it when this process has no files left: he may try again
        door_.letGo(*this, "no shared memory came with the proof");
        return;
      }
      try {
        memory.emplace(MemoryFile::adopt(memory_.take(), door_.memorySize_));
        memory->closeDescriptor();
      } catch (const std::exception& e) {
        answer = Answer::badMemory;
        reason = e.what();
      }
    }
    if (!sendAll(socket_, porter_.verdict(answer))) {
      door_.letGo(*this, "it went away during the handshake");
    } else if (answer != Answer::welcome) {
      door_.letGo(*this, reason);
    } else {
      door_.admit(*this, std::move(memory));
    }
  }

  Door& door_;
  int socket_;
  const std::string from_;
  const Clock::time_point since_ = Clock::now();
  Porter porter_;
  HandshakeSocket incoming_;
  Descriptor memory_; // that came with the proof
  bool greeted_ = false;
  std::unique_ptr<FdWatch> watch_;
  LoopTimer deadline_;
};

Door::Door(
    Loop& loop,
    int listeningSocket,
    const GroupKey& key,
    Medium medium,
    size_t memorySize,
    Events events,
    DoorLimits limits)
    : loop_(loop),
      socket_(listeningSocket),
      key_(key),
      medium_(medium),
      memorySize_(memorySize),
      events_(std::move(events)),
      limits_(limits),
      refusals_(nameOf(SocketAddress::ofSocket(listeningSocket))),
      pause_(loop),
      watch_(std::make_unique<FdWatch>(loop, listeningSocket, [this] { acceptAll(); })) {
  watch_->want(FdWatch::readable);
}

Door::~Door() {
  watch_.reset();
  close(socket_);
}

void Door::acceptAll() {
  for (int i = 0; i < kAcceptsAtOnce && makeRoom() && acceptOne(); ++i) {
  }
}

bool Door::makeRoom() {
  if (guests_.size() < limits_.mostGuests) {
    return true;
  }
  Guest& oldest = *guests_.front();
  if (Clock::now() - oldest.since() < limits_.shortestStay) {
    pauseAccepting(kPauseForRoom);
    return false;
  }
  letGo(oldest, "too many connections are in the handshake, and it has stayed longest");
  return true;
}

bool Door::acceptOne() {
  SocketAddress from;
  const int socket = from.accept(socket_);
  if (socket >= 0) {
    welcome(socket, from);
    return true;
  }
  if (isOfThisConnectionOnly(errno)) {
    return true;
  }
  if (errno != EAGAIN && errno != EWOULDBLOCK) {
    // No files or memory left, most likely.
    refusals_.note("anyone for a moment", std::strerror(errno));
    pauseAccepting(kPauseForFiles);
  }
  return false;
}

// Whoever dials waits in the backlog meanwhile.
void Door::pauseAccepting(std::chrono::milliseconds pause) {
  watch_->want(0);
  pause_.start(pause, [this] { watch_->want(FdWatch::readable); });
}

void Door::welcome(int socket, const SocketAddress& address) {
  std::string from = address.describe();
  if (medium_ == Medium::shm) {
    ucred peer{};
    socklen_t size = sizeof peer;
    getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    from = "process " + std::to_string(peer.pid) + " of user " + std::to_string(peer.uid);
    if (peer.uid != geteuid()) {
      refusals_.note(from, "it runs as another user");
      close(socket);
      return;
    }
  }
  try {
    guests_.push_back(std::make_unique<Guest>(*this, socket, from));
  } catch (const std::exception& e) {
    refusals_.note(from, e.what());
    close(socket);
  }
}

void Door::letGo(Guest& guest, const std::string& reason) {
  refusals_.note(guest.from(), reason);
  guests_.remove_if([&](const auto& each) { return each.get() == &guest; });
}

void Door::admit(Guest& guest, std::optional<MemoryFile> memory) {
  const uint8_t lane = guest.lane();
  const int socket = guest.takeSocket();
  guests_.remove_if([&](const auto& each) { return each.get() == &guest; });
  events_.admitted({socket, lane, std::move(memory)});
}

} // namespace torchwire
