#include "backend/tensorpipe_link.h"

#include <tensorpipe/tensorpipe.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "backend/address.h"
#include "backend/annotations.h"
#include "backend/bytes.h"
#include "backend/log.h"
#include "backend/transport_table.h"

namespace torchwire {
namespace {

namespace tp = tensorpipe;

constexpr std::chrono::milliseconds kListenAgainDelay{2};
constexpr int kListenAgainAttempts = 1000;

Error fromTensorPipe(const tp::Error& error) {
  if (!error) {
    return Error();
  }
  // The sentence itself, without the place in the source that Error::what() adds.
  const auto inner = error.castToType<tp::BaseError>();
  return Error(ErrorCode::linkBroken, inner ? inner->what() : error.what());
}

/// Runs `body`, turning what it throws into an error: an exception in a TensorPipe callback would end
/// the process.
template <typename Body>
Error guarded(Body body) {
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
  return message;
}

/// Memory for a frame that the peer announced, in the frame and in TensorPipe's form.
tp::Allocation allocate(const tp::Descriptor& descriptor, IncomingFrame& frame) {
  if (descriptor.payloads.empty()) {
    throw FormatError("a message without a payload");
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
    frame.tensors.push_back(allocateBlob(tensor.length));
    tp::Allocation::Tensor into;
    into.buffer = tp::CpuBuffer{.ptr = frame.tensors.back().data.get()};
    allocation.tensors.push_back(std::move(into));
  }
  return allocation;
}

/// The options, once it is sure that the address can be bound: a bind that fails inside TensorPipe, for the
/// listener or for a channel's lanes, ends the process.
TensorPipeOptions bindable(TensorPipeOptions options) {
  if (const auto reason = whyCannotBind(options.bindAddress)) {
    throw std::runtime_error("cannot listen on " + options.bindAddress + ": " + *reason);
  }
  return options;
}

Site siteFor(const TensorPipeOptions& options) {
  Site site;
  site.bindAddress = options.bindAddress;
  site.advertiseAddress = options.advertiseAddress;
  site.groupKey = options.groupKey;
  site.keepAlive = options.keepAlive;
  return site;
}

class TensorPipeLink final : public Link {
 public:
  explicit TensorPipeLink(std::shared_ptr<tp::Pipe> pipe) : pipe_(std::move(pipe)) {}
  ~TensorPipeLink() override {
    pipe_->close();
  }

  void send(OutgoingFrame frame, Sent sent) override {
    auto kept = std::make_shared<OutgoingFrame>(std::move(frame));
    pipe_->write(toMessage(*kept), [kept, sent = std::move(sent)](const tp::Error& error) {
      sent(fromTensorPipe(error));
    });
  }

  void receive(Received received) override {
    pipe_->readDescriptor([pipe = pipe_, received = std::move(received)](
                              const tp::Error& error, tp::Descriptor descriptor) {
      if (error) {
        call(received, *pipe, fromTensorPipe(error), {});
        return;
      }
      auto frame = std::make_shared<IncomingFrame>();
      tp::Allocation allocation;
      if (const Error failed = guarded([&] { allocation = allocate(descriptor, *frame); })) {
        pipe->close();
        call(received, *pipe, failed, {});
        return;
      }
      pipe->read(std::move(allocation), [pipe, frame, received](const tp::Error& readError) {
        call(received, *pipe, fromTensorPipe(readError), std::move(*frame));
      });
    });
  }

  void close() override {
    pipe_->close();
  }

 private:
  static void call(const Received& received, tp::Pipe& pipe, const Error& error, IncomingFrame frame) {
    if (const Error thrown = guarded([&] { received(error, std::move(frame)); })) {
      log(LogLevel::error, "closed a link because its handler threw: " + thrown.message());
      pipe.close();
    }
  }

  const std::shared_ptr<tp::Pipe> pipe_;
};

class TensorPipeContext final : public LinkContext {
 public:
  TensorPipeContext(TensorPipeOptions options, Timer& timer);
  ~TensorPipeContext() override {
    join();
  }

  std::string listen(Accepted accepted) override;
  std::shared_ptr<Link> dial(const WorkerRecord& peer) override;
  std::vector<char> offer() const override;
  LinkDescription describe(const std::vector<char>& peersOffer) const override;
  void join() override;

 private:
  std::shared_ptr<tp::Listener> openListener(const std::string& address);
  void acceptNext(const std::shared_ptr<tp::Listener>& listener);
  void listenAgain(int attempt);

  const TensorPipeOptions options_;
  Timer& timer_;
  Site site_;
  std::vector<MadeTransport> transports_; // best first
  std::vector<MadeChannel> channels_;
  tp::Context context_;
  std::string bootstrap_; // the transport over which others dial
  std::string bound_; // where it listens: "host:port"
  Mutex mutex_{LockRank::tensorPipeContext};
  std::shared_ptr<tp::Listener> listener_ GUARDED_BY(mutex_);
  Accepted accepted_;
  std::atomic<bool> joined_{false};
};

TensorPipeContext::TensorPipeContext(TensorPipeOptions options, Timer& timer)
    : options_(bindable(std::move(options))),
      timer_(timer),
      site_(siteFor(options_)),
      transports_(makeTransports(options_.transports, site_)),
      channels_(makeChannels(options_.channels, site_)),
      context_(tp::ContextOptions().name(options_.workerName)) {
  // TensorPipe prefers higher numbers.
  for (size_t i = 0; i < transports_.size(); ++i) {
    context_.registerTransport(
        static_cast<int64_t>(transports_.size() - i),
        transports_[i].entry->name,
        transports_[i].context);
  }
  for (size_t i = 0; i < channels_.size(); ++i) {
    for (const auto& layer : options_.layers) {
      channels_[i].context = layer->aroundChannel(std::move(channels_[i].context), timer_);
    }
    context_.registerChannel(
        static_cast<int64_t>(channels_.size() - i), channels_[i].entry->name, channels_[i].context);
  }
}

std::shared_ptr<tp::Listener> TensorPipeContext::openListener(const std::string& address) {
  std::vector<std::string> urls;
  for (const MadeTransport& transport : transports_) {
    const std::string& name = transport.entry->name;
    const std::string where = name == bootstrap_ ? address
        : transport.entry->reach == TransportEntry::Reach::network ? hostOf(address)
                                                                    : uniqueShmAddress();
    urls.push_back(name + "://" + where);
  }
  return context_.listen(urls);
}

std::string TensorPipeContext::listen(Accepted accepted) {
  bootstrap_ = bootstrapOf(transports_).name;
  accepted_ = std::move(accepted);
  std::shared_ptr<tp::Listener> listener = openListener(options_.bindAddress);
  const std::string address = listener->address(bootstrap_);
  // To listen anew, the port that is bound has to be known; an advertised port is somebody else's.
  const bool portTold = options_.advertiseAddress.empty() || portOf(options_.advertiseAddress) == 0;
  bound_ = portTold ? withPort(options_.bindAddress, portOf(address)) : options_.bindAddress;
  {
    MutexLock lock(mutex_);
    listener_ = listener;
  }
  acceptNext(listener);
  return bootstrap_ + "://" + address;
}

void TensorPipeContext::acceptNext(const std::shared_ptr<tp::Listener>& listener) {
  listener->accept([this, weak = std::weak_ptr<tp::Listener>(listener)](
                       const tp::Error& error, std::shared_ptr<tp::Pipe> pipe) {
    if (error) {
      if (!joined_) {
        log(LogLevel::info, "listens anew after a connection failed early: " + error.what());
        timer_.after(kListenAgainDelay, [this] { listenAgain(1); });
      }
      return;
    }
    if (const auto same = weak.lock()) {
      acceptNext(same);
    }
    const Error thrown =
        guarded([&] { accepted_(std::make_shared<TensorPipeLink>(std::move(pipe))); });
    if (thrown) {
      log(LogLevel::error, "dropped a link that was to be accepted: " + thrown.message());
    }
  });
}

// One connection that ends before its first message, be it of a peer that was killed or of a stranger,
// closes a TensorPipe listener for good. A new one takes its place at the same address.
void TensorPipeContext::listenAgain(int attempt) {
  // Our own transports stay bound. Else the old listener may take a moment to close.
  const bool staysBound = bootstrap_ == "wire_tcp" || bootstrap_ == "wire_shm";
  const auto reason = staysBound ? std::nullopt : whyCannotBind(bound_);
  if (reason && attempt < kListenAgainAttempts) {
    timer_.after(kListenAgainDelay, [this, attempt] { listenAgain(attempt + 1); });
    return;
  }
  if (reason) {
    log(LogLevel::error, "can no longer listen on " + bound_ + ": " + *reason);
    return;
  }
  std::shared_ptr<tp::Listener> listener = openListener(bound_);
  {
    MutexLock lock(mutex_);
    listener_ = listener;
  }
  acceptNext(listener);
}

std::shared_ptr<Link> TensorPipeContext::dial(const WorkerRecord& peer) {
  return std::make_shared<TensorPipeLink>(context_.connect(peer.address));
}

std::vector<char> TensorPipeContext::offer() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(static_cast<uint32_t>(transports_.size()));
  for (const MadeTransport& transport : transports_) {
    out.string(transport.entry->name);
    out.string(transport.context->domainDescriptor());
  }
  out.number(static_cast<uint32_t>(channels_.size()));
  for (const MadeChannel& channel : channels_) {
    const auto& devices = channel.context->deviceDescriptors();
    const auto cpu = devices.find(tp::Device(tp::kCpuDeviceType, 0));
    out.string(channel.entry->name);
    out.string(cpu == devices.end() ? std::string() : cpu->second);
  }
  return bytes;
}

namespace {

using Descriptors = std::vector<std::pair<std::string, std::string>>;

Descriptors readDescriptors(ByteReader& in) {
  Descriptors descriptors;
  const uint32_t count = in.count(2 * sizeof(uint32_t));
  for (uint32_t i = 0; i < count; ++i) {
    std::string name = in.string();
    descriptors.emplace_back(std::move(name), in.string());
  }
  return descriptors;
}

const std::string* descriptorOf(const Descriptors& descriptors, const std::string& name) {
  for (const auto& [key, descriptor] : descriptors) {
    if (key == name) {
      return &descriptor;
    }
  }
  return nullptr;
}

} // namespace

// TensorPipe chooses by the same rule but does not tell: the first, in order of preference, that both
// sides have and whose descriptors agree.
LinkDescription TensorPipeContext::describe(const std::vector<char>& peersOffer) const {
  LinkDescription description{"none", "none"};
  ByteReader in(peersOffer);
  const Descriptors transports = readDescriptors(in);
  const Descriptors channels = readDescriptors(in);
  for (const MadeTransport& transport : transports_) {
    const std::string* remote = descriptorOf(transports, transport.entry->name);
    if (remote != nullptr && transport.context->canCommunicateWithRemote(*remote)) {
      description.transport = transport.entry->name;
      break;
    }
  }
  for (const MadeChannel& channel : channels_) {
    const std::string* remote = descriptorOf(channels, channel.entry->name);
    const auto& devices = channel.context->deviceDescriptors();
    const auto cpu = devices.find(tp::Device(tp::kCpuDeviceType, 0));
    if (remote != nullptr && cpu != devices.end() &&
        channel.context->canCommunicateWithRemote(cpu->second, *remote)) {
      description.channel = channel.entry->name;
      break;
    }
  }
  return description;
}

void TensorPipeContext::join() {
  if (!joined_.exchange(true)) {
    context_.join();
  }
}

} // namespace

std::unique_ptr<LinkContext> makeTensorPipeContext(TensorPipeOptions options, Timer& timer) {
  return std::make_unique<TensorPipeContext>(std::move(options), timer);
}

} // namespace torchwire
