#include "backend/transport/ack_watch.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <utility>

namespace torchwire {

using std::chrono::milliseconds;

AckWatch::AckWatch(Loop& loop, int socket, milliseconds interval, std::function<void()> silent)
    : socket_(socket), interval_(interval), silent_(std::move(silent)), timer_(loop) {}

void AckWatch::expect() {
  if (!expecting_) {
    expecting_ = true;
    timer_.start(interval_ / 4, [this] { look(); });
  }
}

void AckWatch::look() {
  int underWay = 0; // bytes that are not acknowledged
  ioctl(socket_, SIOCOUTQ, &underWay);
  if (underWay == 0) {
    expecting_ = false;
  } else if (silence() >= interval_ * 3 / 2) {
    const auto silent = silent_;
    silent();
  } else {
    timer_.start(interval_ / 4, [this] { look(); });
  }
}

milliseconds AckWatch::silence() const {
  tcp_info info{};
  socklen_t size = sizeof info;
  getsockopt(socket_, IPPROTO_TCP, TCP_INFO, &info, &size);
  return milliseconds(info.tcpi_last_ack_recv);
}

} // namespace torchwire
