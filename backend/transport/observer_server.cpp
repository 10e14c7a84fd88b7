#include "backend/transport/observer_server.h"

#include <array>
#include <utility>
#include <vector>

#include "backend/base/bytes.h"

namespace torchwire {
namespace {

constexpr std::array kQuestions = {ObserverQuestion::dump, ObserverQuestion::status};

std::string encoded(const ObserverAnswer& answer) {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(static_cast<uint8_t>(answer.failed ? 1 : 0));
  out.number(static_cast<uint64_t>(answer.text.size()));
  out.raw(answer.text.data(), answer.text.size());
  return {bytes.begin(), bytes.end()};
}

Progress write(Stream& stream, const std::string& text, size_t from) {
  const iovec part{
      const_cast<char*>(text.data()) + from, text.size() - from}; // NOLINT: iovec knows no const
  return stream.write(&part, 1);
}

} // namespace

ObserverServer::ObserverServer(
    std::shared_ptr<Endpoint> endpoint, AskForObserver ask, ObserverLimits limits)
    : endpoint_(std::move(endpoint)), ask_(std::move(ask)), limits_(limits) {}

void ObserverServer::open() {
  endpoint_->loop()->post([self = shared_from_this()] {
    for (const ObserverQuestion question : kQuestions) {
      self->listenFor(question);
    }
  });
}

void ObserverServer::close() {
  endpoint_->loop()->post([self = shared_from_this()] {
    self->closed_ = true;
    self->observers_.clear();
    for (const ObserverQuestion question : kQuestions) {
      self->endpoint_->setLane(static_cast<uint8_t>(question), nullptr);
    }
  });
}

void ObserverServer::listenFor(ObserverQuestion question) {
  endpoint_->loop()->expectOnLoop();
  if (closed_) {
    return;
  }
  endpoint_->setLane(
      static_cast<uint8_t>(question),
      [weak = weak_from_this(), question](std::unique_ptr<Stream> stream) {
        if (const auto self = weak.lock()) {
          self->enter(question, std::move(stream));
        }
      });
}

void ObserverServer::enter(ObserverQuestion question, std::unique_ptr<Stream> stream) {
  endpoint_->loop()->expectOnLoop();
  if (observers_.size() >= limits_.atATime) {
    // It fits into the empty buffer of a new socket.
    write(*stream, encoded({true, "answers as many observers as it may just now: ask again"}), 0);
    return;
  }
  const uint64_t number = next_++;
  try {
    Observer& observer = observers_[number];
    observer.stream = std::move(stream);
    observer.deadline = std::make_unique<LoopTimer>(*endpoint_->loop());
    observer.deadline->start(limits_.patience, [this, number] { leave(number); });
    observer.stream->start([this, number] { onReady(number); });
    observer.stream->setInterest(/* reading */ true, /* writing */ false);
    observer.answering = true;
    ask(question, number);
  } catch (...) { // for want of memory or descriptors: his place is free again
    observers_.erase(number);
    throw;
  }
}

void ObserverServer::ask(ObserverQuestion question, uint64_t number) {
  const bool asked = ask_(
      question, [weak = weak_from_this(), loop = endpoint_->loop(), number](ObserverAnswer answer) {
        loop->post([weak, number, answer = std::move(answer)] {
          if (const auto self = weak.lock()) {
            self->onAnswer(number, answer);
          }
        });
      });
  if (!asked) {
    onAnswer(number, {true, "shuts down"});
  }
}

void ObserverServer::onAnswer(uint64_t number, const ObserverAnswer& answer) {
  const auto found = observers_.find(number);
  if (found == observers_.end()) {
    return; // closed
  }
  Observer& observer = found->second;
  observer.answering = false;
  if (!observer.stream) {
    observers_.erase(found);
    return;
  }
  observer.answer = encoded(answer);
  sendMore(number);
}

/// Those that talk, or have gone, are left.
void ObserverServer::onReady(uint64_t number) {
  Observer& observer = observers_.at(number);
  char byte = 0;
  const Progress progress = observer.stream->read(&byte, 1);
  if (progress.bytes != 0 || !progress.error.empty()) {
    leave(number);
  } else if (!observer.answering) {
    sendMore(number);
  }
}

void ObserverServer::sendMore(uint64_t number) {
  Observer& observer = observers_.at(number);
  while (observer.sent < observer.answer.size()) {
    const Progress progress = write(*observer.stream, observer.answer, observer.sent);
    observer.sent += progress.bytes;
    if (!progress.error.empty()) {
      break;
    }
    if (progress.bytes == 0) {
      observer.stream->setInterest(/* reading */ true, /* writing */ true);
      return;
    }
  }
  leave(number); // what is in the socket still goes out
}

void ObserverServer::leave(uint64_t number) {
  endpoint_->loop()->expectOnLoop();
  Observer& observer = observers_.at(number);
  observer.stream.reset();
  if (!observer.answering) {
    observers_.erase(number);
  } else {
    observer.deadline->stop();
  }
}

} // namespace torchwire
