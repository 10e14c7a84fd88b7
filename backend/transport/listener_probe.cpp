#include "backend/transport/listener_probe.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <thread>

#include "backend/transport/handshake_socket.h"
#include "backend/transport/socket_address.h"

namespace torchwire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSilence{2000};
constexpr std::chrono::milliseconds kPause{50};

bool refuses(const SocketAddress& address) {
  const Descriptor socket(
      ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) {
    return false;
  }
  if (::connect(socket.get(), address.get(), address.size()) == 0) {
    return false;
  }
  if (errno != EINPROGRESS) {
    return errno == ECONNREFUSED;
  }
  pollfd asked{socket.get(), POLLOUT, 0};
  if (::poll(&asked, 1, static_cast<int>(kSilence.count())) <= 0) {
    return false;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
      error == ECONNREFUSED;
}

} // namespace

bool nobodyListensAt(const std::string& address, std::chrono::milliseconds patience) {
  const SocketAddress target = SocketAddress::tcp(address);
  const auto end = Clock::now() + patience;
  while (refuses(target)) {
    if (Clock::now() >= end) {
      return true;
    }
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

} // namespace torchwire
