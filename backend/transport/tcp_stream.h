// A TCP socket as a stream.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "backend/transport/ack_watch.h"
#include "backend/transport/address_watch.h"
#include "backend/transport/loop.h"
#include "backend/transport/loop_watch.h"
#include "backend/transport/stream.h"

namespace torchwire {

/// Takes a connected, non-blocking socket. See Stream for what may be called where.
class TcpStream final : public Stream {
 public:
  /// A peer that does not answer for so long ends the stream. No interval: never. So does the loss of its own address.
  TcpStream(
      Loop& loop, int socket, AckWatch::Patience patience, std::shared_ptr<AddressWatch> addresses);
  ~TcpStream() override;

  void start(std::function<void()> ready) override;
  void setInterest(bool reading, bool writing) override;
  Progress write(const iovec* parts, size_t count) override;
  Progress read(void* into, size_t length) override;
  std::chrono::milliseconds stallPatience() const override;

 private:
  void onReady();
  void endWith(int error);
  void watch();
  bool fill(void* into, size_t length, size_t& given);
  size_t stagedBytes() const {
    return staged_ - taken_;
  }

  Loop& loop_;
  const int socket_;
  std::unique_ptr<FdWatch> watch_;
  const AckWatch::Patience patience_;
  std::optional<AckWatch> acks_;
  const std::shared_ptr<AddressWatch> addresses_;
  std::atomic<bool> wrote_{false}; // since acks_ was told
  std::function<void()> ready_;
  bool reading_ = false, writing_ = false;

  // Small messages, and the beginning of what follows a large one, are received here: one system call
  // for many messages.
  std::unique_ptr<char[]> staging_;
  size_t staged_ = 0, taken_ = 0;
  bool drained_ = false; // the socket has no more until the next event
  std::atomic<int> error_{0}; // why there will be no more: as in errno, or that the peer has closed
};

} // namespace torchwire
