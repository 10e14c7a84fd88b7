#include "backend/transport/address_watch.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/base/log.h"

namespace torchwire {
namespace {

// The kernel tells of an address a moment before it forgets it; and whoever renews one may take it away first.
constexpr std::chrono::milliseconds kSettling{100};

Descriptor openNetlink() {
  Descriptor opened(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  sockaddr_nl groups{};
  groups.nl_family = AF_NETLINK;
  groups.nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  const bool told = opened.get() >= 0 &&
      bind(opened.get(), reinterpret_cast<const sockaddr*>(&groups), sizeof groups) == 0;
  return told ? std::move(opened) : Descriptor();
}

bool tellsOfALoss(const char* messages, size_t length) {
  const auto* message = reinterpret_cast<const nlmsghdr*>(messages);
  for (; NLMSG_OK(message, length); message = NLMSG_NEXT(message, length)) {
    if (message->nlmsg_type == RTM_DELADDR) {
      return true;
    }
  }
  return false;
}

} // namespace

bool hasLostItsAddress(int socket) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  if (getsockname(socket, address, &size) != 0) {
    return false;
  }
  // The port is at the same place in both families.
  reinterpret_cast<sockaddr_in*>(address)->sin_port = 0;
  const Descriptor trial(::socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return trial.get() >= 0 && bind(trial.get(), address, size) != 0 && errno == EADDRNOTAVAIL;
}

AddressWatch::AddressWatch(Loop& loop) : loop_(loop), socket_(openNetlink()), settling_(loop) {
  loop.expectOnLoop();
  try {
    if (socket_.get() < 0) {
      throw std::runtime_error(std::strerror(errno));
    }
    watch_ = std::make_unique<FdWatch>(loop, socket_.get(), [this] { onMessages(); });
    watch_->want(FdWatch::readable);
  } catch (const std::runtime_error& e) {
    log(LogLevel::info,
        std::string("a loss of this host's address will not be noticed: ") + e.what());
  }
}

void AddressWatch::add(const void* listener, std::function<void()> lost) {
  loop_.expectOnLoop();
  listeners_[listener] = std::move(lost);
}

void AddressWatch::remove(const void* listener) {
  loop_.expectOnLoop();
  listeners_.erase(listener);
}

void AddressWatch::onMessages() {
  if (takeMessages()) {
    settling_.start(kSettling, [this] { tell(); });
  }
}

void AddressWatch::tell() {
  const auto self = shared_from_this(); // the last listener may have held it
  std::vector<const void*> told;
  for (const auto& [listener, lost] : listeners_) {
    told.push_back(listener);
  }
  for (const void* listener : told) {
    const auto found = listeners_.find(listener);
    if (found != listeners_.end()) {
      const auto lost = found->second;
      lost();
    }
  }
}

/// Whether an address has gone, by what the kernel has told, or may have: it had told too much.
bool AddressWatch::takeMessages() const {
  alignas(nlmsghdr) std::array<char, 8192> messages;
  bool lost = false;
  while (true) {
    const ssize_t got = recv(socket_.get(), messages.data(), messages.size(), MSG_DONTWAIT);
    if (got > 0) {
      lost = lost || tellsOfALoss(messages.data(), static_cast<size_t>(got));
    } else if (got < 0 && errno == ENOBUFS) {
      lost = true;
    } else if (got == 0 || errno != EINTR) {
      return lost;
    }
  }
}

} // namespace torchwire
