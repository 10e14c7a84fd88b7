#include "backend/transport/listener.h"

#include <chrono>
#include <utility>

#include "backend/transport/connection.h"

namespace torchwire {
namespace {

constexpr std::chrono::milliseconds kPatience{10000}; // for a first message
constexpr size_t kMostReady = 4096; // TensorPipe accepts at once; these would mean that it has stopped

const Error kClosed(ErrorCode::shutDown, "the listener was closed");

} // namespace

// ---- Lobby ----------------------------------------------------------------------------------------

Lobby::Lobby(
    std::shared_ptr<Port> port, std::shared_ptr<Conversations> conversations, uint8_t lane)
    : port_(std::move(port)), conversations_(std::move(conversations)), lane_(lane) {}

void Lobby::open() {
  if (!closed_) {
    opened_ = true;
    port_->setLane(lane_, [weak = weak_from_this()](std::unique_ptr<Stream> stream) {
      if (const auto self = weak.lock()) {
        self->enter(std::move(stream));
      }
    });
  }
}

void Lobby::enter(std::unique_ptr<Stream> stream) {
  const std::shared_ptr<Conversation> conversation = conversations_->open(port_->loop());
  const auto newcomer = newcomers_.emplace(newcomers_.end(), conversation, *port_->loop());
  newcomer->deadline.start(kPatience, [conversation] {
    conversation->fail(Error(ErrorCode::timeout, "no first message came in time"));
  });
  conversation->expectFirstMessage([self = shared_from_this(), newcomer](const Error& error) {
    self->onFirstMessage(newcomer, error);
  });
  conversation->start(std::move(stream));
}

void Lobby::onFirstMessage(std::list<Newcomer>::iterator newcomer, const Error& error) {
  const std::shared_ptr<Conversation> conversation = newcomer->conversation;
  newcomers_.erase(newcomer);
  if (error || closed_ || ready_.size() >= kMostReady) {
    conversation->close();
    return;
  }
  ready_.push_back(conversation);
  match();
}

void Lobby::accept(Accept accept) {
  if (closed_) {
    accept(toTensorPipe(kClosed), nullptr);
    return;
  }
  accepts_.push_back(std::move(accept));
  match();
}

void Lobby::match() {
  while (!ready_.empty() && !accepts_.empty()) {
    const Accept accept = std::move(accepts_.front());
    accepts_.pop_front();
    auto connection = std::make_shared<Connection>(std::move(ready_.front()));
    ready_.pop_front();
    accept(toTensorPipe(Error()), std::move(connection));
  }
}

void Lobby::close() {
  if (closed_) {
    return;
  }
  closed_ = true;
  if (opened_) { // else the lane is another's
    port_->setLane(lane_, nullptr);
  }
  for (const Newcomer& newcomer : newcomers_) {
    newcomer.conversation->close();
  }
  for (const auto& conversation : std::exchange(ready_, {})) {
    conversation->close();
  }
  for (const Accept& accept : std::exchange(accepts_, {})) {
    accept(toTensorPipe(kClosed), nullptr);
  }
}

// ---- Listener -------------------------------------------------------------------------------------

Listener::Listener(std::shared_ptr<Port> port, uint8_t lane, std::shared_ptr<Lobby> lobby)
    : port_(std::move(port)), lane_(lane), lobby_(std::move(lobby)) {
  port_->loop()->post([lobby = lobby_] { lobby->open(); });
}

Listener::~Listener() {
  close();
}

void Listener::accept(accept_callback_fn fn) {
  port_->loop()->post([lobby = lobby_, fn = std::move(fn)]() mutable { lobby->accept(std::move(fn)); });
}

std::string Listener::addr() const {
  return port_->addressOf(lane_);
}

void Listener::setId(std::string) {}

void Listener::close() {
  port_->loop()->post([lobby = lobby_] { lobby->close(); });
}

} // namespace torchwire
