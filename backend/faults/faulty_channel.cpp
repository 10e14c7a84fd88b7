#include "backend/faults/faulty_channel.h"

#include <tensorpipe/channel/channel.h>
#include <tensorpipe/channel/context.h>
#include <tensorpipe/tensorpipe.h>

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/faults/mid_tensor.h"

namespace torchwire::faults {
namespace {

namespace tp = tensorpipe;
using tp::channel::Channel;

class ClosedInMidTensor final : public tp::BaseError {
 public:
  std::string what() const override {
    return "the link was closed in the middle of a tensor";
  }
};

/// A piece of memory to be sent. Channels take no more than that of a tensor.
struct Piece {
  tp::Buffer buffer;
  size_t length = 0;
};

bool canBeHalved(const tp::Buffer& buffer, size_t length) {
  return length >= 2 && buffer.device().type == tp::kCpuDeviceType;
}

std::pair<Piece, Piece> halves(const tp::Buffer& buffer, size_t length) {
  auto* const begin = static_cast<char*>(buffer.unwrap<tp::CpuBuffer>().ptr);
  const size_t first = length / 2;
  return {
      {tp::CpuBuffer{.ptr = begin}, first}, {tp::CpuBuffer{.ptr = begin + first}, length - first}};
}

/// While a tensor is held in its middle, those behind it wait. Thread-safe.
class FaultyChannel final : public Channel, public std::enable_shared_from_this<FaultyChannel> {
 public:
  FaultyChannel(std::shared_ptr<Channel> inner, std::shared_ptr<MidTensor> midTensor)
      : inner_(std::move(inner)), midTensor_(std::move(midTensor)) {}

  void send(tp::Buffer buffer, size_t length, tp::channel::TSendCallback callback) override
      EXCLUDES(mutex_);
  void recv(tp::Buffer buffer, size_t length, tp::channel::TRecvCallback callback) override;
  void setId(std::string id) override {
    inner_->setId(std::move(id));
  }
  void close() override EXCLUDES(mutex_);

 private:
  struct Send {
    Piece piece;
    tp::channel::TSendCallback callback;
  };

  void sendWaiting() EXCLUDES(mutex_);
  void sendWhole(Send send) EXCLUDES(mutex_);
  void sendFirstHalf(Send send, MidTensor::Injection inject) EXCLUDES(mutex_);
  void sendRest() EXCLUDES(mutex_);

  const std::shared_ptr<Channel> inner_;
  const std::shared_ptr<MidTensor> midTensor_;
  Mutex mutex_{LockRank::faultyChannel};
  bool sending_ GUARDED_BY(mutex_) = false; // some thread does, for the order's sake one at a time
  bool holding_ GUARDED_BY(mutex_) = false; // until the rest has been handed to the inner channel
  std::optional<Send> rest_ GUARDED_BY(mutex_); // of the tensor that is held
  std::deque<Send> waiting_ GUARDED_BY(mutex_);
};

void FaultyChannel::send(tp::Buffer buffer, size_t length, tp::channel::TSendCallback callback) {
  {
    MutexLock lock(mutex_);
    waiting_.push_back({{std::move(buffer), length}, std::move(callback)});
  }
  sendWaiting();
}

void FaultyChannel::sendWaiting() {
  for (;;) {
    Send next;
    {
      MutexLock lock(mutex_);
      if (sending_ || holding_ || waiting_.empty()) {
        return;
      }
      sending_ = true;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    sendWhole(std::move(next));
    MutexLock lock(mutex_);
    sending_ = false;
  }
}

void FaultyChannel::sendWhole(Send send) {
  const auto& [buffer, length] = send.piece;
  if (!canBeHalved(buffer, length)) {
    inner_->send(buffer, length, std::move(send.callback));
  } else if (auto inject = midTensor_->take(buffer.unwrap<tp::CpuBuffer>().ptr)) {
    sendFirstHalf(std::move(send), std::move(inject));
  } else {
    auto [first, second] = halves(buffer, length);
    inner_->send(first.buffer, first.length, [](const tp::Error&) {}); // the second half fails too
    inner_->send(second.buffer, second.length, std::move(send.callback));
  }
}

void FaultyChannel::sendFirstHalf(Send send, MidTensor::Injection inject) {
  auto [first, second] = halves(send.piece.buffer, send.piece.length);
  {
    MutexLock lock(mutex_);
    holding_ = true;
    rest_ = Send{std::move(second), std::move(send.callback)};
  }
  inner_->send(
      first.buffer, first.length,
      [self = shared_from_this(), inject = std::move(inject)](const tp::Error& error) {
        if (error) {
          self->sendRest(); // to fail as well
        } else {
          inject([self] { self->sendRest(); });
        }
      });
}

void FaultyChannel::sendRest() {
  std::optional<Send> rest;
  {
    MutexLock lock(mutex_);
    rest.swap(rest_);
  }
  if (rest) { // else the channel was closed meanwhile
    inner_->send(rest->piece.buffer, rest->piece.length, std::move(rest->callback));
  }
  {
    MutexLock lock(mutex_);
    holding_ = false;
  }
  sendWaiting();
}

void FaultyChannel::recv(tp::Buffer buffer, size_t length, tp::channel::TRecvCallback callback) {
  if (!canBeHalved(buffer, length)) {
    inner_->recv(std::move(buffer), length, std::move(callback));
    return;
  }
  auto [first, second] = halves(buffer, length);
  inner_->recv(first.buffer, first.length, [](const tp::Error&) {}); // the second half fails too
  inner_->recv(second.buffer, second.length, std::move(callback));
}

void FaultyChannel::close() {
  std::optional<Send> rest;
  std::deque<Send> waiting;
  {
    MutexLock lock(mutex_);
    rest.swap(rest_);
    waiting.swap(waiting_);
    holding_ = false;
  }
  inner_->close();
  if (rest) {
    waiting.push_front(std::move(*rest));
  }
  const tp::Error closed(std::make_shared<ClosedInMidTensor>(), __FILE__, __LINE__);
  for (const Send& send : waiting) {
    send.callback(closed);
  }
}

class FaultyChannelContext final : public tp::channel::Context {
 public:
  FaultyChannelContext(
      std::shared_ptr<tp::channel::Context> inner, std::shared_ptr<MidTensor> midTensor)
      : inner_(std::move(inner)), midTensor_(std::move(midTensor)) {}

  bool isViable() const override {
    return inner_->isViable();
  }
  size_t numConnectionsNeeded() const override {
    return inner_->numConnectionsNeeded();
  }
  const std::unordered_map<tp::Device, std::string>& deviceDescriptors() const override {
    return inner_->deviceDescriptors();
  }
  bool canCommunicateWithRemote(
      const std::string& local, const std::string& remote) const override {
    return inner_->canCommunicateWithRemote(local, remote);
  }
  std::shared_ptr<Channel> createChannel(
      std::vector<std::shared_ptr<tp::transport::Connection>> connections,
      tp::channel::Endpoint endpoint) override {
    return std::make_shared<FaultyChannel>(
        inner_->createChannel(std::move(connections), endpoint), midTensor_);
  }
  void setId(std::string id) override {
    inner_->setId(std::move(id));
  }
  void close() override {
    inner_->close();
  }
  void join() override {
    inner_->join();
  }

 private:
  const std::shared_ptr<tp::channel::Context> inner_;
  const std::shared_ptr<MidTensor> midTensor_;
};

} // namespace

std::shared_ptr<tp::channel::Context> makeFaultyChannel(
    std::shared_ptr<tp::channel::Context> inner, std::shared_ptr<MidTensor> midTensor) {
  return std::make_shared<FaultyChannelContext>(std::move(inner), std::move(midTensor));
}

} // namespace torchwire::faults
