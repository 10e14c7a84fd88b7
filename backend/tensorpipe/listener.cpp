#include "backend/tensorpipe/listener.h"

#include <chrono>
#include <utility>

#include "backend/tensorpipe/connection.h"

namespace torchwire {
namespace {

constexpr std::chrono::milliseconds kPatience{10000}; // for a first message
constexpr size_t kMaxReady =
    4096; // TensorPipe accepts at once; these would mean that it has stopped

const Error kClosed(ErrorCode::shutDown, "the listener was closed");

} // namespace

// ---- AcceptQueue ----------------------------------------------------------------------------------

AcceptQueue::AcceptQueue(
    std::shared_ptr<Endpoint> endpoint, std::shared_ptr<MessageStreams> streams, uint8_t lane)
    : endpoint_(std::move(endpoint)), streams_(std::move(streams)), lane_(lane) {}

void AcceptQueue::open() {
  endpoint_->loop()->expectOnLoop();
  if (!closed_) {
    opened_ = true;
    endpoint_->setLane(lane_, [weak = weak_from_this()](std::unique_ptr<Stream> stream) {
      if (const auto self = weak.lock()) {
        self->enter(std::move(stream));
      }
    });
  }
}

void AcceptQueue::enter(std::unique_ptr<Stream> stream) {
  endpoint_->loop()->expectOnLoop();
  const std::shared_ptr<MessageStream> messageStream = streams_->open(endpoint_->loop());
  const auto pending = pending_.emplace(pending_.end(), messageStream, *endpoint_->loop());
  pending->deadline.start(kPatience, [messageStream] {
    messageStream->fail(Error(ErrorCode::timeout, "no first message came in time"));
  });
  messageStream->expectFirstMessage([self = shared_from_this(), pending](const Error& error) {
    self->onFirstMessage(pending, error);
  });
  messageStream->start(std::move(stream));
}

void AcceptQueue::onFirstMessage(
    std::list<PendingConnection>::iterator pending, const Error& error) {
  const std::shared_ptr<MessageStream> stream = pending->stream;
  pending_.erase(pending);
  if (error || closed_ || ready_.size() >= kMaxReady) {
    stream->close();
    return;
  }
  ready_.push_back(stream);
  match();
}

void AcceptQueue::accept(Accept accept) {
  endpoint_->loop()->expectOnLoop();
  if (closed_) {
    accept(toTensorPipe(kClosed), nullptr);
    return;
  }
  accepts_.push_back(std::move(accept));
  match();
}

void AcceptQueue::match() {
  while (!ready_.empty() && !accepts_.empty()) {
    const Accept accept = std::move(accepts_.front());
    accepts_.pop_front();
    auto connection = std::make_shared<Connection>(std::move(ready_.front()));
    ready_.pop_front();
    accept(toTensorPipe(Error()), std::move(connection));
  }
}

void AcceptQueue::close() {
  endpoint_->loop()->expectOnLoop();
  if (closed_) {
    return;
  }
  closed_ = true;
  if (opened_) { // else the lane is another's
    endpoint_->setLane(lane_, nullptr);
  }
  for (const PendingConnection& pending : pending_) {
    pending.stream->close();
  }
  for (const auto& stream : std::exchange(ready_, {})) {
    stream->close();
  }
  for (const Accept& accept : std::exchange(accepts_, {})) {
    accept(toTensorPipe(kClosed), nullptr);
  }
}

// ---- Listener -------------------------------------------------------------------------------------

Listener::Listener(
    std::shared_ptr<Endpoint> endpoint, uint8_t lane, std::shared_ptr<AcceptQueue> acceptQueue)
    : endpoint_(std::move(endpoint)), lane_(lane), acceptQueue_(std::move(acceptQueue)) {
  endpoint_->loop()->post([queue = acceptQueue_] { queue->open(); });
}

Listener::~Listener() {
  close();
}

void Listener::accept(accept_callback_fn fn) {
  endpoint_->loop()->post(
      [queue = acceptQueue_, fn = std::move(fn)]() mutable { queue->accept(std::move(fn)); });
}

std::string Listener::addr() const {
  return endpoint_->addressOf(lane_);
}

void Listener::setId(std::string) {}

void Listener::close() {
  endpoint_->loop()->post([queue = acceptQueue_] { queue->close(); });
}

} // namespace torchwire
