// A lane of a port as TensorPipe's transport::Listener.
#pragma once

#include <tensorpipe/transport/listener.h>

#include <deque>
#include <list>
#include <memory>
#include <utility>

#include "backend/transport/conversations.h"
#include "backend/transport/loop_watch.h"
#include "backend/transport/port.h"

namespace torchwire {

/// Newcomers wait here until their first message is complete and somebody accepts. Loop-bound.
///
/// That wait is why a connection that ends early cannot hurt: TensorPipe's listeners, and the lanes of its
/// mpt channel, close for good when a connection they accepted ends before its first message.
class Lobby final : public std::enable_shared_from_this<Lobby> {
 public:
  using Accept = tensorpipe::transport::Listener::accept_callback_fn;

  Lobby(std::shared_ptr<Port> port, std::shared_ptr<Conversations> conversations, uint8_t lane);

  void open();
  void accept(Accept accept);
  void close();

 private:
  struct Newcomer {
    Newcomer(std::shared_ptr<Conversation> who, Loop& loop)
        : conversation(std::move(who)), deadline(loop) {}
    const std::shared_ptr<Conversation> conversation;
    LoopTimer deadline;
  };

  void enter(std::unique_ptr<Stream> stream);
  void onFirstMessage(std::list<Newcomer>::iterator newcomer, const Error& error);
  void match();

  const std::shared_ptr<Port> port_;
  const std::shared_ptr<Conversations> conversations_;
  const uint8_t lane_;
  bool opened_ = false, closed_ = false;
  std::list<Newcomer> newcomers_; // without a first message
  std::deque<std::shared_ptr<Conversation>> ready_;
  std::deque<Accept> accepts_;
};

/// Closes its lobby when it goes. Thread-safe.
class Listener final : public tensorpipe::transport::Listener {
 public:
  Listener(std::shared_ptr<Port> port, uint8_t lane, std::shared_ptr<Lobby> lobby);
  ~Listener() override;

  void accept(accept_callback_fn fn) override;
  std::string addr() const override;
  void setId(std::string id) override;
  void close() override;

 private:
  const std::shared_ptr<Port> port_;
  const uint8_t lane_;
  const std::shared_ptr<Lobby> lobby_;
};

} // namespace torchwire
