#include "backend/tensorpipe/tensorpipe_link.h"

#include <tensorpipe/tensorpipe.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "backend/base/bytes.h"
#include "backend/base/log.h"
#include "backend/base/resource_limits.h"
#include "backend/base/thread_role.h"
#include "backend/tensorpipe/connection.h"
#include "backend/transport/write_batch.h"

namespace torchwire {
namespace {

namespace tp = tensorpipe;

Error fromTensorPipe(const tp::Error& error) {
  if (!error) {
    return Error();
  }
  // The sentence itself, without the place in the source that Error::what() adds.
  const auto inner = error.castToType<tp::BaseError>();
  const ErrorCode found = codeIn(error);
  const bool tellsMore = found == ErrorCode::nobodyListens || found == ErrorCode::atLimit ||
      found == ErrorCode::notAdmitted;
  const ErrorCode code = tellsMore ? found : ErrorCode::linkBroken;
  return Error(code, inner ? inner->what() : error.what());
}

/// Runs `body`, turning what it throws into an error: an exception in a TensorPipe callback would end
/// the process.
template <typename Body>
Error errorOf(Body body) {
  try {
    body();
    return Error();
  } catch (const std::exception& e) {
    return Error(ErrorCode::badFrame, e.what());
  }
}

tp::Message toMessage(const OutgoingFrame& frame) {
  tp::Message message;
  message.payloads.reserve(1 + frame.payloads.size());
  // TensorPipe has one type for reading and writing, hence its pointers to non-const.
  message.payloads.push_back(
      {const_cast<char*>(frame.head.data()), frame.head.size(), std::string()}); // NOLINT
  for (const Segment& payload : frame.payloads) {
    message.payloads.push_back(
        {const_cast<void*>(payload.data), payload.length, std::string()}); // NOLINT
  }
  message.tensors.reserve(frame.tensors.size());
  for (const Segment& tensor : frame.tensors) {
    tp::Message::Tensor out;
    out.buffer = tp::CpuBuffer{.ptr = const_cast<void*>(tensor.data)}; // NOLINT
    out.length = tensor.length;
    out.targetDevice = tp::Device(tp::kCpuDeviceType, 0);
    message.tensors.push_back(std::move(out));
  }
  if (message.payloads.size() + message.tensors.size() > 1) {
    // Who has no memory for all of it knows by this which call it is of.
    message.metadata.assign(frame.head.data(), std::min(frame.head.size(), FrameHeader::kSize));
  }
  return message;
}

/// At most SIZE_MAX, whatever the peer says.
size_t bytesOf(const tp::Descriptor& descriptor) {
  size_t bytes = 0;
  const auto add = [&](uint64_t length) { bytes += std::min<uint64_t>(length, SIZE_MAX - bytes); };
  for (const auto& payload : descriptor.payloads) {
    add(payload.length);
  }
  for (const auto& tensor : descriptor.tensors) {
    add(tensor.length);
  }
  return bytes;
}

/// Memory for a frame that the peer announced, in the frame and in TensorPipe's form.
tp::Allocation allocate(
    const tp::Descriptor& descriptor, BufferPool& buffers, IncomingFrame& frame) {
  if (descriptor.payloads.empty()) {
    throw FormatError("a message without a payload");
  }
  if (bytesOf(descriptor) > memoryOfHost()) {
    throw std::bad_alloc(); // without filling all that there is
  }
  tp::Allocation allocation;
  frame.head.resize(descriptor.payloads.front().length);
  allocation.payloads.push_back({frame.head.data()});
  frame.payloads.resize(descriptor.payloads.size() - 1);
  for (size_t i = 0; i < frame.payloads.size(); ++i) {
    frame.payloads[i].resize(descriptor.payloads[i + 1].length);
    allocation.payloads.push_back({frame.payloads[i].data()});
  }
  for (const auto& tensor : descriptor.tensors) {
    frame.tensors.push_back({buffers.allocate(tensor.length), tensor.length});
    tp::Allocation::Tensor into;
    into.buffer = tp::CpuBuffer{.ptr = frame.tensors.back().data.get()};
    allocation.tensors.push_back(std::move(into));
  }
  return allocation;
}

/// Every call down into a pipe is made in a SendScope, and what a pipe calls back goes through the relay. A callback
/// of TensorPipe's is destroyed where it was called, so it leaves nothing in itself: what it owns moves on with what
/// it relays.
class TensorPipeLink final : public Link {
 public:
  TensorPipeLink(
      std::shared_ptr<tp::Pipe> pipe, std::shared_ptr<CallbackRelay> relay,
      std::shared_ptr<BufferPool> buffers)
      : end_(std::make_shared<End>(std::move(pipe), std::move(relay), std::move(buffers))) {}
  ~TensorPipeLink() override {
    end_->close();
  }

  void send(OutgoingFrame frame, Sent sent) override {
    sendShared(std::make_shared<const OutgoingFrame>(std::move(frame)), std::move(sent));
  }
  void sendShared(std::shared_ptr<const OutgoingFrame> frame, Sent sent) override;
  void receive(Received received) override {
    end_->receive(std::make_shared<Received>(std::move(received)));
  }
  void watchLargeFrames(std::function<void()> began) override {
    end_->largeFrameBegan = std::move(began);
  }
  void close() override {
    end_->close();
  }

 private:
  // What callbacks share with the link, which may go before them.
  struct End : std::enable_shared_from_this<End> {
    End(std::shared_ptr<tp::Pipe> p, std::shared_ptr<CallbackRelay> r,
        std::shared_ptr<BufferPool> b)
        : pipe(std::move(p)), relay(std::move(r)), buffers(std::move(b)) {}
    ~End() {
      const SendScope scope; // the end of a pipe is a call down into TensorPipe, too
      pipe.reset();
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;

    void receive(std::shared_ptr<Received> received);
    void onDescriptor(
        std::shared_ptr<Received> received, const Error& error, const tp::Descriptor& descriptor);
    void read(
        std::shared_ptr<Received> received, std::shared_ptr<IncomingFrame> frame,
        tp::Allocation allocation);
    void handOn(const Received& received, const Error& error, IncomingFrame frame);
    void handOnHeader(const Received& received, const tp::Descriptor& descriptor);
    void close() {
      const SendScope scope;
      pipe->close();
    }

    std::shared_ptr<tp::Pipe> pipe;
    const std::shared_ptr<CallbackRelay> relay;
    const std::shared_ptr<BufferPool> buffers;
    std::function<void()> largeFrameBegan; // or none
    Error lost; // a frame for which there was no memory; by who receives
  };

  const std::shared_ptr<End> end_;
};

void TensorPipeLink::sendShared(std::shared_ptr<const OutgoingFrame> frame, Sent sent) {
  tp::Message message = toMessage(*frame);
  const SendScope scope;
  const WriteBatch batch;
  end_->pipe->write(
      std::move(message),
      [frame = std::move(frame), sent = std::move(sent),
       relay = end_->relay](const tp::Error& error) mutable {
        CallbackRelay& callbacks = *relay;
        callbacks.run([frame = std::move(frame), sent = std::move(sent),
                       error = fromTensorPipe(error)] { sent(error); });
      });
}

void TensorPipeLink::End::receive(std::shared_ptr<Received> received) {
  if (lost) {
    handOn(*received, lost, {});
    return;
  }
  const SendScope scope;
  pipe->readDescriptor([self = shared_from_this(), received = std::move(received)](
                           const tp::Error& error, tp::Descriptor descriptor) mutable {
    CallbackRelay& callbacks = *self->relay;
    callbacks.run([self = std::move(self), received = std::move(received),
                   error = fromTensorPipe(error), descriptor = std::move(descriptor)]() mutable {
      self->onDescriptor(std::move(received), error, descriptor);
    });
  });
}

void TensorPipeLink::End::onDescriptor(
    std::shared_ptr<Received> received, const Error& error, const tp::Descriptor& descriptor) {
  if (error) {
    handOn(*received, error, {});
    return;
  }
  auto frame = std::make_shared<IncomingFrame>();
  tp::Allocation allocation;
  try {
    allocation = allocate(descriptor, *buffers, *frame);
  } catch (const std::bad_alloc&) {
    close(); // nothing of a message can be skipped
    frame.reset();
    handOnHeader(*received, descriptor);
    return;
  } catch (const std::exception& e) {
    close();
    handOn(*received, Error(ErrorCode::badFrame, e.what()), {});
    return;
  }
  if (largeFrameBegan && frame->bytes() >= kLargeFrame) {
    largeFrameBegan();
  }
  read(std::move(received), std::move(frame), std::move(allocation));
}

void TensorPipeLink::End::read(
    std::shared_ptr<Received> received, std::shared_ptr<IncomingFrame> frame,
    tp::Allocation allocation) {
  const SendScope scope;
  pipe->read(
      std::move(allocation),
      [self = shared_from_this(), received = std::move(received),
       frame = std::move(frame)](const tp::Error& error) mutable {
        CallbackRelay& callbacks = *self->relay;
        callbacks.run([self = std::move(self), received = std::move(received),
                       frame = std::move(*frame), error = fromTensorPipe(error)]() mutable {
          self->handOn(*received, error, std::move(frame));
        });
      });
}

void TensorPipeLink::End::handOn(
    const Received& received, const Error& error, IncomingFrame frame) {
  if (const Error thrown = errorOf([&] { received(error, std::move(frame)); })) {
    log(LogLevel::error, "closed a link because its handler threw: " + thrown.message());
    close();
  }
}

/// The frame counts as received, so that it does not come again on the next link; only its call fails.
void TensorPipeLink::End::handOnHeader(const Received& received, const tp::Descriptor& descriptor) {
  const size_t bytes = bytesOf(descriptor);
  lost = Error(
      ErrorCode::linkBroken,
      "this worker has no memory for a message of " + std::to_string(bytes) + " bytes");
  IncomingFrame header;
  header.head.assign(descriptor.metadata.begin(), descriptor.metadata.end());
  header.lost = bytes;
  if (header.head.empty()) { // of a small frame
    handOn(received, lost, {});
  } else {
    handOn(received, Error(), std::move(header));
  }
}

} // namespace

std::shared_ptr<Link> makeTensorPipeLink(
    std::shared_ptr<tensorpipe::Pipe> pipe, std::shared_ptr<CallbackRelay> relay,
    std::shared_ptr<BufferPool> buffers) {
  return std::make_shared<TensorPipeLink>(std::move(pipe), std::move(relay), std::move(buffers));
}

} // namespace torchwire
