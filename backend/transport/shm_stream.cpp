#include "backend/transport/shm_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace torchwire {
namespace {

// A ring for each direction. Pages are only taken up once they have been written to.
constexpr size_t kCapacity = size_t{1} << 21; // bytes
constexpr size_t kRingSize = sizeof(RingHeader) + kCapacity;
static_assert(kRingSize % alignof(RingHeader) == 0);
// What is written before the other side is woken, if it sleeps.
constexpr size_t kSlice = size_t{128} << 10;

const char kEnded[] = "the peer closed the connection (its process may have ended)";
const char kBrokenRing[] = "the peer broke the shared memory's indices";

RingMemory ringAt(const MemoryFile& memory, int number) {
  char* start = memory.data() + static_cast<size_t>(number) * kRingSize;
  // All zeros is a header's initial state.
  return {reinterpret_cast<RingHeader*>(start), start + sizeof(RingHeader), kCapacity};
}

} // namespace

size_t ShmStream::memorySize() {
  return 2 * kRingSize;
}

ShmStream::ShmStream(Loop& loop, int socket, MemoryFile memory, bool dialed)
    : loop_(loop),
      socket_(socket),
      memory_(std::move(memory)),
      writer_(ringAt(memory_, dialed ? 0 : 1)),
      reader_(ringAt(memory_, dialed ? 1 : 0)) {}

ShmStream::~ShmStream() {
  if (watch_) {
    loop_.remove(*this);
  }
  watch_.reset();
  close(socket_);
}

void ShmStream::start(std::function<void()> ready) {
  loop_.expectOnLoop();
  ready_ = std::move(ready);
  watch_ = std::make_unique<FdWatch>(loop_, socket_, [this] { onSocket(); });
  watch_->want(FdWatch::readable);
  loop_.add(*this);
}

void ShmStream::setInterest(bool reading, bool writing) {
  loop_.expectOnLoop();
  reading_ = reading;
  writing_ = writing;
}

bool ShmStream::isReady() const {
  return (reading_ && reader_.isReady()) || (writing_ && writer_.isReady());
}

bool ShmStream::poll() {
  if (!isReady()) {
    return false;
  }
  ready_(); // last: it may destroy this
  return true;
}

bool ShmStream::armWakeup() {
  const bool nothingToRead = !reading_ || reader_.requestWakeup();
  const bool noRoom = !writing_ || writer_.requestWakeup();
  return nothingToRead && noRoom;
}

void ShmStream::disarmWakeup() {
  reader_.cancelWakeup();
  writer_.cancelWakeup();
}

// Wakeups, which say only that it is time to look at the rings; or the end.
void ShmStream::onSocket() {
  char wakeups[64];
  const ssize_t got = recv(socket_, wakeups, sizeof wakeups, MSG_DONTWAIT);
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) {
    return; // the loop polls all rings when it is awake
  }
  ended_ = true;
  watch_->want(0);
  ready_(); // last: it may destroy this
}

void ShmStream::sendWakeup() {
  // If the socket is full of wakeups, one more would not be heard better.
  [[maybe_unused]] const ssize_t sent = send(socket_, "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

Progress ShmStream::write(const iovec* parts, size_t count) {
  if (ended_) {
    return {0, kEnded};
  }
  size_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    for (size_t done = 0; done < parts[i].iov_len;) {
      const size_t slice = std::min(parts[i].iov_len - done, kSlice);
      const auto written = writer_.write(static_cast<const char*>(parts[i].iov_base) + done, slice);
      if (!written) {
        return {total, kBrokenRing};
      }
      done += *written;
      total += *written;
      const bool last = i + 1 == count && done == parts[i].iov_len;
      if ((last || *written < slice || done % kSlice == 0) && writer_.takeReaderWakeup()) {
        sendWakeup();
      }
      if (*written < slice) {
        return {total, {}};
      }
    }
  }
  return {total, {}};
}

Progress ShmStream::read(void* into, size_t length) {
  const bool ended = ended_; // before the look at the ring
  const auto got = reader_.read(into, length);
  if (!got) {
    return {0, kBrokenRing};
  }
  if (*got != 0 && reader_.takeWriterWakeup()) {
    sendWakeup();
  }
  // What the peer wrote before it ended is in the ring, so its end is told only when that is empty.
  return {*got, *got == 0 && ended ? kEnded : ""};
}

} // namespace torchwire
