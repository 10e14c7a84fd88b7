// Where a worker answers observers (wire/observation.h): on lanes of its wire_tcp endpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "backend/transport/endpoint.h"
#include "backend/transport/loop_watch.h"
#include "backend/transport/stream.h"
#include "backend/wire/observation.h"

namespace torchwire {

struct ObserverLimits {
  size_t atATime = 8; // further ones are told so, and closed
  std::chrono::milliseconds patience{
      15000}; // from the end of the handshake until all of the answer is gone
};

/// Nothing that an observer sends is looked at, and he has as much of this worker as the limits say: one that stalls is
/// left when his time is over. An observer that has gone keeps his place until his answer is there, so that no more
/// threads than places are taken by answers that wait for a lock. Costs nothing while nobody asks.
/// Held by shared_ptr; open() and close() are thread-safe, the rest is loop-bound.
class ObserverServer final : public std::enable_shared_from_this<ObserverServer> {
 public:
  ObserverServer(
      std::shared_ptr<Endpoint> endpoint, AskForObserver ask,
      ObserverLimits limits = ObserverLimits());

  /// Observers are let in from now on.
  void open();
  /// Nobody is answered any more. Before the last pointer goes.
  void close();

  /// How many places are taken. Loop-bound.
  size_t taken() const {
    return observers_.size();
  }

 private:
  struct Observer {
    std::unique_ptr<Stream> stream; // null: he has gone
    std::unique_ptr<LoopTimer> deadline;
    bool answering = false; // he has been asked for, and the answer has not come
    std::string answer;
    size_t sent = 0;
  };

  void listenFor(ObserverQuestion question);
  void enter(ObserverQuestion question, std::unique_ptr<Stream> stream);
  void ask(ObserverQuestion question, uint64_t number);
  void onAnswer(uint64_t number, const ObserverAnswer& answer);
  void onReady(uint64_t number);
  void sendMore(uint64_t number);
  void leave(uint64_t number);

  const std::shared_ptr<Endpoint> endpoint_;
  const AskForObserver ask_;
  const ObserverLimits limits_;
  std::map<uint64_t, Observer> observers_;
  uint64_t next_ = 0;
  bool closed_ = false;
};

} // namespace torchwire
