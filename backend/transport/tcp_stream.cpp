#include "backend/transport/tcp_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace torchwire {
namespace {

constexpr size_t kStaging = size_t{64} << 10;
// From here on bytes go where they are wanted without a stop in the staging area.
constexpr size_t kDirect = size_t{16} << 10;

bool isToBeTriedAgain(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

// Beside the numbers in errno.
constexpr int kPeerClosed = -1;
constexpr int kAddressLost = -2;

std::string sentenceFor(int error) {
  if (error == kPeerClosed) {
    return "the peer closed the connection (its process may have ended)";
  }
  if (error == ETIMEDOUT) {
    return "the peer has not answered for long (see keepalive_interval)";
  }
  if (error == kAddressLost) {
    return "the connection's own address is none of this host's any more";
  }
  return std::strerror(error);
}

} // namespace

TcpStream::TcpStream(
    Loop& loop, int socket, AckWatch::Patience patience, std::shared_ptr<AddressWatch> addresses)
    : loop_(loop), socket_(socket), patience_(patience), addresses_(std::move(addresses)) {
  if (patience.interval.count() != 0) {
    acks_.emplace(loop, socket, patience, [this] { endWith(ETIMEDOUT); });
  }
}

TcpStream::~TcpStream() {
  addresses_->remove(this);
  watch_.reset();
  close(socket_);
}

void TcpStream::start(std::function<void()> ready) {
  loop_.expectOnLoop();
  ready_ = std::move(ready);
  watch_ = std::make_unique<FdWatch>(loop_, socket_, [this] { onReady(); });
  watch();
  if (!hasLostItsAddress(socket_)) { // else it is one that only looks like that
    addresses_->add(this, [this] {
      if (hasLostItsAddress(socket_)) {
        endWith(kAddressLost);
      }
    });
  }
}

void TcpStream::setInterest(bool reading, bool writing) {
  loop_.expectOnLoop();
  if (acks_ && wrote_.exchange(false)) {
    acks_->expect();
  }
  if (reading != reading_ || writing != writing_) {
    reading_ = reading;
    writing_ = writing;
    watch();
  }
}

// Readability is of interest even if nobody reads, so that the end of the peer shows: but only until there
// is no room any more for what comes instead.
void TcpStream::watch() {
  const bool room = reading_ || stagedBytes() < kStaging;
  watch_->want((room && error_ == 0 ? FdWatch::readable : 0) | (writing_ ? FdWatch::writable : 0));
}

void TcpStream::onReady() {
  drained_ = false;
  loop_.noteSocketTraffic();
  if (!reading_) {
    size_t none = 0;
    fill(nullptr, 0, none);
    watch();
  }
  ready_(); // last: it may destroy this
}

// With sessions the calls go on on the next link; the floor keeps a busy processor from looking like a stall. Without
// sessions the calls fail with the connection, so it lasts as long as the keep-alive lets it.
std::chrono::milliseconds TcpStream::stallPatience() const {
  const bool hasSessions = patience_.whileLost.count() != 0 && patience_.interval.count() != 0;
  return hasSessions ? std::max(patience_.interval / 2, patience_.whileLost)
                     : 2 * patience_.interval;
}

void TcpStream::endWith(int error) {
  if (error_ != 0) {
    return;
  }
  error_ = error;
  watch();
  ready_(); // last: it may destroy this
}

Progress TcpStream::write(const iovec* parts, size_t count) {
  if (const int before = error_; before != 0) {
    return {0, sentenceFor(before)};
  }
  wrote_ = true;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts); // NOLINT: msghdr knows no const
  message.msg_iovlen = count;
  const ssize_t sent = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) {
    return {static_cast<size_t>(sent), {}};
  }
  if (isToBeTriedAgain(errno)) {
    return {};
  }
  return {0, sentenceFor(errno)};
}

Progress TcpStream::read(void* into, size_t length) {
  size_t given = 0;
  if (stagedBytes() == 0 && !drained_ && error_ == 0) {
    fill(into, length >= kDirect ? length : 0, given);
  }
  if (given == 0 && stagedBytes() != 0) {
    given = std::min(length, stagedBytes());
    std::memcpy(into, staging_.get() + taken_, given);
    taken_ += given;
  }
  return {given, given == 0 && error_ != 0 ? sentenceFor(error_) : std::string()};
}

/// Receives into `into`, as far as there is a length, and unless that is large into the staging area.
bool TcpStream::fill(void* into, size_t length, size_t& given) {
  if (!staging_) {
    staging_ = std::make_unique_for_overwrite<char[]>(kStaging);
  }
  if (taken_ != 0) { // room at the end, for watch() counts on it
    std::memmove(staging_.get(), staging_.get() + taken_, stagedBytes());
    staged_ -= std::exchange(taken_, 0);
  }
  iovec parts[2] = {{into, length}, {staging_.get() + staged_, kStaging - staged_}};
  msghdr message{};
  message.msg_iov = length != 0 ? parts : parts + 1;
  message.msg_iovlen = length != 0 && length < kStaging ? 2 : 1;
  const size_t asked = length < kStaging ? length + kStaging - staged_ : length;
  if (asked == 0) {
    return false;
  }
  const ssize_t got = recvmsg(socket_, &message, MSG_DONTWAIT);
  if (got > 0) {
    given = std::min(static_cast<size_t>(got), length);
    staged_ += static_cast<size_t>(got) - given;
    // Of something large more comes while this is copied: ask until there is none.
    const bool isLarge = length != 0 && static_cast<size_t>(got) >= kDirect;
    drained_ = static_cast<size_t>(got) < asked && !isLarge;
    return true;
  }
  drained_ = true;
  if (got == 0) {
    error_ = kPeerClosed;
  } else if (!isToBeTriedAgain(errno)) {
    error_ = errno;
  }
  return false;
}

} // namespace torchwire
