// Whether a peer still acknowledges what is sent to it over TCP.
#pragma once

#include <chrono>
#include <functional>

#include "backend/transport/loop_watch.h"

namespace torchwire {

/// The system's keep-alive beats rest while bytes are under way, and its own patience with those is a
/// quarter of an hour. TCP_USER_TIMEOUT would shorten that, but also ends a connection whose peer answers,
/// again and again, that it has no room. This looks at the acknowledgements instead, as long as there are
/// any to come. Before, the beats were answered, so that silence is never older than they are apart.
/// Loop-bound.
class AckWatch {
 public:
  /// `silent` is called once, when nothing has been heard for one and a half intervals though something was
  /// to be. It may destroy the watch.
  AckWatch(
      Loop& loop, int socket, std::chrono::milliseconds interval, std::function<void()> silent);

  /// Something has been sent.
  void expect();

 private:
  void look();
  std::chrono::milliseconds silence() const;

  const int socket_;
  const std::chrono::milliseconds interval_;
  const std::function<void()> silent_;
  bool expecting_ = false;
  LoopTimer timer_;
};

} // namespace torchwire
