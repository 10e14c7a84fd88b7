// The set-up of wire_shm over a Unix socket: bytes that come in any pieces, with descriptors of any kind, of
// which only sealed memory of the right size may be mapped.

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/transport/handshake_socket.h"
#include "backend/transport/memory_file.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

constexpr int kMaxSteps = 24;
constexpr size_t kMaxMessage = 64;
constexpr size_t kMaxDescriptors = 8; // more than are received at once
constexpr size_t kPage = 4096;
constexpr size_t kMemorySize = 4 * kPage; // what is expected

/// How many files this process has open.
size_t openFiles() {
  constexpr size_t kMaxFiles = 256; // none of those opened here gets a higher number
  std::array<pollfd, kMaxFiles> files{};
  for (size_t i = 0; i < kMaxFiles; ++i) {
    files[i].fd = static_cast<int>(i);
  }
  poll(files.data(), files.size(), 0);
  return static_cast<size_t>(std::count_if(files.begin(), files.end(), [](const pollfd& file) {
    return (file.revents & POLLNVAL) == 0;
  }));
}

// ---- what comes along --------------------------------------------------------------------------------

/// A descriptor that a peer sends, and whether it is one that may be mapped.
struct Gift {
  Descriptor descriptor;
  bool isRight = false;
};

/// Opens the same file again, with other rights.
int reopen(int descriptor, int flags) {
  return open(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), flags | O_CLOEXEC);
}

Gift makeMemory(Script& script) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  constexpr int kForbidden = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
  const std::array<int, 4> access = {O_RDWR, O_RDONLY, O_WRONLY, O_PATH};
  const std::array<size_t, 6> sizes = {kMemorySize,    0, kPage, kMemorySize - 1, kMemorySize + 1,
                                       2 * kMemorySize};

  Gift gift{Descriptor(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING))};
  const size_t size = script.PickValueInArray(sizes);
  require(
      ftruncate(gift.descriptor.get(), static_cast<off_t>(size)) == 0, "a memory file has a size");
  const int seals = script.ConsumeBool()
      ? kNeeded
      : script.ConsumeIntegralInRange<int>(
            0, 31); // all that there are, F_SEAL_FUTURE_WRITE the last
  fcntl(gift.descriptor.get(), F_ADD_SEALS, seals);
  const int way = script.ConsumeBool() ? O_RDWR : script.PickValueInArray(access);
  if (way != O_RDWR) {
    gift.descriptor = Descriptor(reopen(gift.descriptor.get(), way));
  }
  gift.isRight = size == kMemorySize && (seals & kNeeded) == kNeeded && (seals & kForbidden) == 0 &&
      way == O_RDWR;
  return gift;
}

/// Huge pages, if this system has any: mapping them may fail later, so they are refused.
int makeHugeMemory() {
  const int file = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (file >= 0) {
    fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  }
  return file;
}

int openPipe(Script& script) {
  int ends[2] = {-1, -1};
  require(pipe2(ends, O_CLOEXEC) == 0, "there are pipes");
  const bool which = script.ConsumeBool();
  close(ends[which ? 0 : 1]);
  return ends[which ? 1 : 0];
}

Gift makeGift(Script& script) {
  switch (script.ConsumeIntegralInRange(0, 8)) {
    case 0:
      return {Descriptor(openPipe(script))};
    case 1:
      return {Descriptor(open("/dev/null", O_RDWR | O_CLOEXEC))};
    case 2:
      return {Descriptor(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC))};
    case 3: // ordinary memory, but with a name: nobody can seal it
      return {Descriptor(open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR))};
    case 4:
      return {Descriptor(makeHugeMemory())};
    default:
      return makeMemory(script);
  }
}

// ---- the two ends of the socket ----------------------------------------------------------------------

/// Sends what a peer might: any pieces, with any descriptors.
class Peer {
 public:
  explicit Peer(int socket) : socket_(socket) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    hangUp();
  }

  void send(Script& script) {
    const std::vector<unsigned char> bytes = script.ConsumeBytes<unsigned char>(
        script.ConsumeIntegralInRange<size_t>(0, 2 * kMaxMessage));
    std::vector<Gift> gifts;
    while (script.ConsumeBool() && gifts.size() < kMaxDescriptors) {
      Gift gift = makeGift(script);
      if (gift.descriptor.get() >= 0) { // else this system has none of that kind
        gifts.push_back(std::move(gift));
      }
    }
    if (send(bytes, gifts)) {
      noteSent(bytes, std::move(gifts));
    }
  }

  /// As a member of the group does it.
  void sendHonestly(size_t size) {
    std::vector<Gift> gifts;
    gifts.push_back({Descriptor(dup(MemoryFile::create(kMemorySize).descriptor())), true});
    const HandshakeBytes message(size, 'h');
    if (sendAll(socket_, message, gifts.front().descriptor.get())) {
      noteSent(message, std::move(gifts));
    }
  }

  void hangUp() {
    if (socket_ >= 0) {
      close(std::exchange(socket_, -1));
    }
  }

  const std::vector<unsigned char>& sent() const {
    return sent_;
  }

  /// The first gift that came with the bytes from `begin` to `end`, or null.
  const Gift* firstGift(size_t begin, size_t end) const {
    for (const Parcel& parcel : parcels_) {
      if (parcel.at >= begin && parcel.at < end && !parcel.gifts.empty()) {
        return &parcel.gifts.front();
      }
    }
    return nullptr;
  }

 private:
  struct Parcel {
    size_t at; // of its first byte
    std::vector<Gift> gifts;
  };

  void noteSent(const std::vector<unsigned char>& bytes, std::vector<Gift> gifts) {
    parcels_.push_back({sent_.size(), std::move(gifts)});
    sent_.insert(sent_.end(), bytes.begin(), bytes.end());
  }

  bool send(const std::vector<unsigned char>& bytes, const std::vector<Gift>& gifts) {
    std::vector<int> descriptors;
    for (const Gift& gift : gifts) {
      descriptors.push_back(gift.descriptor.get());
    }
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
    iovec part{
        const_cast<unsigned char*>(bytes.data()), bytes.size()}; // NOLINT: iovec knows no const
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
    }
    const ssize_t sent = sendmsg(socket_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    require(sent <= 0 || static_cast<size_t>(sent) == bytes.size(), "there is room in the socket");
    return sent > 0;
  }

  int socket_;
  std::vector<unsigned char> sent_;
  std::deque<Parcel> parcels_;
};

/// What was sent is what was received, and nothing beyond the message.
void checkBytes(const HandshakeSocket& incoming, size_t received, const Peer& peer) {
  require(received <= incoming.bytes().size(), "no more than the message is received");
  require(incoming.isComplete() == (received == incoming.bytes().size()), "a message has an end");
  require(received <= peer.sent().size(), "no more than was sent is received");
  require(
      std::equal(
          peer.sent().begin(), peer.sent().begin() + static_cast<ptrdiff_t>(received),
          incoming.bytes().begin()),
      "bytes come as they were sent");
}

bool isSame(int one, int other) {
  struct stat first{};
  struct stat second{};
  fstat(one, &first);
  fstat(other, &second);
  return first.st_dev == second.st_dev && first.st_ino == second.st_ino &&
      fcntl(one, F_GETFL) == fcntl(other, F_GETFL);
}

/// Maps what came along, if that can be done, and uses all of it.
void adopt(int descriptor, const Gift* gift) {
  const bool isRight = gift != nullptr && gift->isRight;
  try {
    MemoryFile memory = MemoryFile::adopt(descriptor, kMemorySize);
    require(isRight, "only the right memory is adopted");
    require(
        ftruncate(gift->descriptor.get(), 0) != 0,
        "the peer cannot change the size of what is mapped");
    std::memset(memory.data(), 1, kMemorySize);
    memory.closeDescriptor();
    require(memory.data()[kMemorySize - 1] == 1, "the mapping stays without its descriptor");
  } catch (const std::runtime_error&) {
    require(!isRight, "the right memory is adopted");
  }
}

/// The accepting side of a set-up.
class AcceptingSide {
 public:
  AcceptingSide(int socket, size_t messageSize) : socket_(socket), incoming_(messageSize) {}

  bool isWaiting() const {
    return !ended_ && !incoming_.isComplete();
  }
  size_t messageSize() const {
    return incoming_.bytes().size();
  }

  void receive(const Peer& peer, bool withDescriptor) {
    const size_t before = received_;
    const Progress progress = incoming_.receive(socket_.get(), withDescriptor ? &kept_ : nullptr);
    received_ += progress.bytes;
    ended_ = !progress.error.empty();
    require(progress.bytes == 0 || !ended_, "an end is told when nothing else is");
    checkBytes(incoming_, received_, peer);
    if (withDescriptor && gift_ == nullptr) {
      gift_ = peer.firstGift(before, received_);
    }
    require((kept_.get() >= 0) == (gift_ != nullptr), "a descriptor is kept where one is wanted");
    require(
        gift_ == nullptr || isSame(kept_.get(), gift_->descriptor.get()),
        "of several descriptors the first is kept");
  }

  void finish() {
    adopt(kept_.take(), gift_);
  }

 private:
  const Descriptor socket_;
  HandshakeSocket incoming_;
  Descriptor kept_;
  const Gift* gift_ = nullptr; // what that is
  size_t received_ = 0;
  bool ended_ = false;
};

void run(Script script) {
  int ends[2] = {-1, -1};
  require(
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0,
      "there are sockets");
  Peer peer(ends[1]);
  AcceptingSide accepting(ends[0], script.ConsumeIntegralInRange<size_t>(1, kMaxMessage));
  for (int i = 0; i < kMaxSteps && accepting.isWaiting(); ++i) {
    switch (script.ConsumeIntegralInRange(0, 7)) {
      case 0:
        peer.hangUp();
        break;
      case 1:
        peer.sendHonestly(accepting.messageSize());
        break;
      case 2:
      case 3:
      case 4:
        peer.send(script);
        break;
      default:
        accepting.receive(peer, script.ConsumeBool());
    }
  }
  if (!accepting.isWaiting() || script.ConsumeBool()) { // else it is dropped before that
    accepting.finish();
  }
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torchwire;
  const size_t before = openFiles();
  run(Script(data, size));
  require(openFiles() == before, "all files are closed again");
  return 0;
}
