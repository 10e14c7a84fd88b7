#include "backend/transport/ack_watch.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace torchwire {

using std::chrono::milliseconds;

AckWatch::AckWatch(Loop& loop, int socket, Patience patience, std::function<void()> silent)
    : socket_(socket), patience_(patience), silent_(std::move(silent)), timer_(loop) {}

void AckWatch::expect() {
  if (!expecting_) {
    expecting_ = true;
    since_ = Clock::now();
    timer_.start(untilNextLook(), [this] { look(); });
  }
}

void AckWatch::look() {
  int underWay = 0; // bytes that are not acknowledged
  ioctl(socket_, SIOCOUTQ, &underWay);
  tcp_info info{};
  socklen_t size = sizeof info;
  getsockopt(socket_, IPPROTO_TCP, TCP_INFO, &info, &size);
  if (info.tcpi_retransmits > 0) {
    allowFragments();
  }
  if (underWay == 0) {
    expecting_ = false;
  } else if (isSilent(info)) {
    const auto silent = silent_;
    silent();
  } else {
    timer_.start(untilNextLook(), [this] { look(); });
  }
}

// A part of the path may have a smaller MTU and drop what would say so: the sender's word that nobody may fragment its
// packets is what makes the large ones get lost there. Routers fragment those of IPv4 alone.
void AckWatch::allowFragments() const {
  const int allowed = IP_PMTUDISC_DONT;
  setsockopt(socket_, IPPROTO_IP, IP_MTU_DISCOVER, &allowed, sizeof allowed);
}

// A peer without room acknowledges each question whether it has any, and those become rare: so only lost packets are
// reason for less patience.
bool AckWatch::isSilent(const tcp_info& info) const {
  const milliseconds silence(info.tcpi_last_ack_recv);
  if (patience_.whileLost.count() != 0 && info.tcpi_retransmits > 0) {
    // It may be as old as the beats are apart, which is longer, where there was nothing to hear.
    const auto expecting = std::chrono::duration_cast<milliseconds>(Clock::now() - since_);
    return std::min(silence, expecting) >= patience_.whileLost;
  }
  return silence >= patience_.interval * 3 / 2;
}

milliseconds AckWatch::untilNextLook() const {
  return patience_.whileLost.count() != 0 ? patience_.whileLost / 4 : patience_.interval / 4;
}

} // namespace torchwire
