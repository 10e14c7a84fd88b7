// Whether a peer still acknowledges what is sent to it over TCP.
#pragma once

#include <netinet/tcp.h>

#include <chrono>
#include <functional>

#include "backend/transport/loop_watch.h"

namespace torchwire {

/// The system's keep-alive beats rest while bytes are under way, and its own patience with those is a
/// quarter of an hour. TCP_USER_TIMEOUT would shorten that, but also ends a connection whose peer answers,
/// again and again, that it has no room. This looks at the acknowledgements instead, as long as there are
/// any to come. Before, the beats were answered, so that silence is never older than they are apart. Loop-bound.
class AckWatch {
 public:
  struct Patience {
    std::chrono::milliseconds interval{0}; // silence may last one and a half of them
    // While packets get lost it may last so long: less than `interval`. 0: no less than otherwise.
    std::chrono::milliseconds whileLost{0};
  };

  /// `silent` is called once, when nothing has been heard for that long though something was to be. It may destroy the
  /// watch.
  AckWatch(Loop& loop, int socket, Patience patience, std::function<void()> silent);

  /// Something has been sent.
  void expect();

 private:
  using Clock = std::chrono::steady_clock;

  void look();
  bool isSilent(const tcp_info& info) const;
  void allowFragments() const;
  std::chrono::milliseconds untilNextLook() const;

  const int socket_;
  const Patience patience_;
  const std::function<void()> silent_;
  bool expecting_ = false;
  Clock::time_point since_; // expecting
  LoopTimer timer_;
};

} // namespace torchwire
