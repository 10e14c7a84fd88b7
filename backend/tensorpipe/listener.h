// A lane of an endpoint as TensorPipe's transport::Listener.
#pragma once

#include <tensorpipe/transport/listener.h>

#include <deque>
#include <list>
#include <memory>
#include <utility>

#include "backend/transport/endpoint.h"
#include "backend/transport/loop_watch.h"
#include "backend/transport/message_streams.h"

namespace torchwire {

/// New connections wait here until their first message is complete and somebody accepts. Loop-bound.
///
/// That wait is why a connection that ends early cannot hurt: TensorPipe's listeners, and the lanes of its
/// mpt channel, close for good when a connection they accepted ends before its first message.
class AcceptQueue final : public std::enable_shared_from_this<AcceptQueue> {
 public:
  using Accept = tensorpipe::transport::Listener::accept_callback_fn;

  AcceptQueue(
      std::shared_ptr<Endpoint> endpoint, std::shared_ptr<MessageStreams> streams, uint8_t lane);

  void open();
  void accept(Accept accept);
  void close();

 private:
  struct PendingConnection {
    PendingConnection(std::shared_ptr<MessageStream> its, Loop& loop)
        : stream(std::move(its)), deadline(loop) {}
    const std::shared_ptr<MessageStream> stream;
    LoopTimer deadline;
  };

  void enter(std::unique_ptr<Stream> stream);
  void onFirstMessage(std::list<PendingConnection>::iterator pending, const Error& error);
  void match();

  const std::shared_ptr<Endpoint> endpoint_;
  const std::shared_ptr<MessageStreams> streams_;
  const uint8_t lane_;
  bool opened_ = false, closed_ = false;
  std::list<PendingConnection> pending_; // without a first message
  std::deque<std::shared_ptr<MessageStream>> ready_;
  std::deque<Accept> accepts_;
};

/// Closes its accept queue when it goes. Thread-safe.
class Listener final : public tensorpipe::transport::Listener {
 public:
  Listener(
      std::shared_ptr<Endpoint> endpoint, uint8_t lane, std::shared_ptr<AcceptQueue> acceptQueue);
  ~Listener() override;

  void accept(accept_callback_fn fn) override;
  std::string addr() const override;
  void setId(std::string id) override;
  void close() override;

 private:
  const std::shared_ptr<Endpoint> endpoint_;
  const uint8_t lane_;
  const std::shared_ptr<AcceptQueue> acceptQueue_;
};

} // namespace torchwire
