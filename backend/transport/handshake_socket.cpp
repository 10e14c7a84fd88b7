#include "backend/transport/handshake_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace torchwire {
namespace {

// Room for a few descriptors, so that those too many are seen and closed rather than cut off.
constexpr size_t kMaxDescriptors = 4;

union Control {
  char bytes[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  cmsghdr alignment;
};

/// Keeps the first descriptor and closes the others.
void takeDescriptors(msghdr& message, Descriptor& into) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof(int), sizeof descriptor);
      Descriptor received(descriptor);
      if (into.get() < 0) {
        into = std::move(received);
      }
    }
  }
}

} // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

Progress HandshakeSocket::receive(int socket, Descriptor* into) {
  iovec part{bytes_.data() + received_, bytes_.size() - received_};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (into != nullptr) { // else the system closes what comes along
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
  }
  const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got > 0) {
    if (into != nullptr) {
      takeDescriptors(message, *into);
    }
    received_ += static_cast<size_t>(got);
    return {static_cast<size_t>(got), {}};
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return {};
  }
  return {0, got == 0 ? "it closed the connection during the handshake" : std::strerror(errno)};
}

bool sendAll(int socket, ForeignBytes bytes, int descriptor) {
  iovec part{
      const_cast<unsigned char*>(bytes.data()), bytes.size()}; // NOLINT: iovec knows no const
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof descriptor);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  const ssize_t sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes.size());
}

} // namespace torchwire
