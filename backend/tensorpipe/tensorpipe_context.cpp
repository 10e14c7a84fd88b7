#include "backend/tensorpipe/tensorpipe_context.h"

#include <tensorpipe/tensorpipe.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "backend/base/address.h"
#include "backend/base/annotations.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/base/process_identity.h"
#include "backend/base/thread_role.h"
#include "backend/tensorpipe/callback_relay.h"
#include "backend/tensorpipe/domain.h"
#include "backend/tensorpipe/observers.h"
#include "backend/tensorpipe/offer.h"
#include "backend/tensorpipe/tensorpipe_link.h"
#include "backend/tensorpipe/transport_table.h"
#include "backend/transport/observer_server.h"

namespace torchwire {
namespace {

namespace tp = tensorpipe;

constexpr std::chrono::milliseconds kListenAgainDelay{2};
constexpr int kListenAgainAttempts = 1000;

TransportEnvironment environmentFor(const TensorPipeOptions& options) {
  TransportEnvironment environment;
  environment.bindAddress = options.bindAddress;
  environment.advertiseAddress = options.advertiseAddress;
  environment.keys = options.keys;
  environment.keepAlive = options.keepAlive;
  environment.lossTimeout = options.lossTimeout;
  environment.encryption = options.encryption;
  environment.loop = options.loop;
  return environment;
}

class TensorPipeContext final : public LinkContext {
 public:
  TensorPipeContext(TensorPipeOptions options, std::shared_ptr<BufferPool> buffers, Timer& timer);
  ~TensorPipeContext() override {
    join();
  }

  std::string listen(Accepted accepted) override;
  HostAddress hostAddress() const override {
    return onHost_;
  }
  std::shared_ptr<Link> dial(const WorkerRecord& peer) override;
  std::vector<char> offer() const override;
  LinkDescription describe(const std::vector<char>& peersOffer) const override;
  void join() override;

  void admitObservers(AskForObserver ask);

 private:
  std::string objectionToPlain(const std::string& transport, const std::string& channel) const;
  std::optional<Objection> whyTransportApart(
      const std::string& name, const std::string& peers) const;
  std::optional<Objection> whyChannelApart(const std::string& name, const std::string& peers) const;
  std::string placeOf(const TransportEntry& transport, const std::string& address) const;
  std::optional<std::string> whyCannotListen(const std::string& address) const;
  std::shared_ptr<tp::Listener> openListener(const std::string& address);
  void acceptNext(const std::shared_ptr<tp::Listener>& listener);
  void onAccepted(
      const std::weak_ptr<tp::Listener>& listener, const tp::Error& error,
      std::shared_ptr<tp::Pipe> pipe);
  void listenAgain(int attempt);

  const TensorPipeOptions options_;
  const std::string host_ = ProcessIdentity::ofThisProcess().boot; // empty: not known
  const std::shared_ptr<BufferPool> buffers_;
  Timer& timer_;
  TransportEnvironment environment_;
  const std::shared_ptr<CallbackRelay> relay_;
  std::vector<MadeTransport> transports_; // best first
  std::vector<MadeChannel> channels_;
  tp::Context context_;
  const TransportEntry* bootstrap_ = nullptr; // the transport over which others dial
  std::string bound_; // where it listens: "host:port"
  HostAddress onHost_; // from listen() on
  Mutex mutex_{LockRank::tensorPipeContext};
  std::shared_ptr<tp::Listener> listener_ GUARDED_BY(mutex_);
  Accepted accepted_;
  std::shared_ptr<ObserverServer> observers_; // if there may be any
  std::atomic<bool> joined_{false};
};

TensorPipeContext::TensorPipeContext(
    TensorPipeOptions options, std::shared_ptr<BufferPool> buffers, Timer& timer)
    : options_(std::move(options)),
      buffers_(std::move(buffers)),
      timer_(timer),
      environment_(environmentFor(options_)),
      relay_(std::make_shared<CallbackRelay>(environment_.loop)),
      transports_(makeTransports(options_.transports, environment_)),
      channels_(makeChannels(options_.channels, environment_)),
      context_(tp::ContextOptions().name(options_.workerName)) {
  // TensorPipe prefers higher numbers.
  for (size_t i = 0; i < transports_.size(); ++i) {
    context_.registerTransport(
        static_cast<int64_t>(transports_.size() - i), transports_[i].entry->name,
        transports_[i].context);
  }
  for (size_t i = 0; i < channels_.size(); ++i) {
    for (const auto& interceptor : options_.interceptors) {
      channels_[i].context = interceptor->wrapChannel(std::move(channels_[i].context));
    }
    context_.registerChannel(
        static_cast<int64_t>(channels_.size() - i), channels_[i].entry->name, channels_[i].context);
  }
}

/// Where a transport listens, if the one over which others dial listens at `address`.
std::string TensorPipeContext::placeOf(
    const TransportEntry& transport, const std::string& address) const {
  if (&transport == bootstrap_) {
    return address;
  }
  return transport.reach == TransportEntry::Reach::network ? hostOf(address) : uniqueShmAddress();
}

/// A bind that fails inside TensorPipe ends the process, so it is tried before. Torchwire's own transports are bound already.
std::optional<std::string> TensorPipeContext::whyCannotListen(const std::string& address) const {
  for (const MadeTransport& transport : transports_) {
    const TransportEntry& entry = *transport.entry;
    if (!entry.staysBound && entry.reach == TransportEntry::Reach::network) {
      if (auto reason = whyCannotBind(placeOf(entry, address))) {
        return reason;
      }
    }
  }
  return std::nullopt;
}

std::shared_ptr<tp::Listener> TensorPipeContext::openListener(const std::string& address) {
  std::vector<std::string> urls;
  for (const MadeTransport& transport : transports_) {
    urls.push_back(transport.entry->name + "://" + placeOf(*transport.entry, address));
  }
  const SendScope scope;
  return context_.listen(urls);
}

std::string TensorPipeContext::listen(Accepted accepted) {
  bootstrap_ = &bootstrapOf(transports_);
  accepted_ = std::move(accepted);
  if (const auto reason = whyCannotListen(options_.bindAddress)) {
    throw CannotListen(options_.bindAddress, *reason);
  }
  std::shared_ptr<tp::Listener> listener = openListener(options_.bindAddress);
  const std::string address = listener->address(bootstrap_->name);
  // To listen anew, the port that is bound has to be known; an advertised port is somebody else's.
  const bool portTold = options_.advertiseAddress.empty() || portOf(options_.advertiseAddress) == 0;
  bound_ = portTold ? withPort(options_.bindAddress, portOf(address)) : options_.bindAddress;
  // Only where a pipe between two on this host would end up on that transport anyway.
  if (const MadeTransport& best = transports_.front();
      best.entry != bootstrap_ && best.entry->reach == TransportEntry::Reach::hostAlone) {
    const std::string& name = best.entry->name;
    onHost_ = {best.context->domainDescriptor(), name + "://" + listener->address(name)};
  }
  {
    MutexLock lock(mutex_);
    listener_ = listener;
  }
  acceptNext(listener);
  return bootstrap_->name + "://" + address;
}

void TensorPipeContext::acceptNext(const std::shared_ptr<tp::Listener>& listener) {
  const SendScope scope;
  listener->accept([this, weak = std::weak_ptr<tp::Listener>(listener)](
                       const tp::Error& error, std::shared_ptr<tp::Pipe> pipe) {
    relay_->run([this, weak, error, pipe = std::move(pipe)]() mutable {
      onAccepted(weak, error, std::move(pipe));
    });
  });
}

void TensorPipeContext::onAccepted(
    const std::weak_ptr<tp::Listener>& listener, const tp::Error& error,
    std::shared_ptr<tp::Pipe> pipe) {
  if (error) {
    if (!joined_) {
      log(LogLevel::info, "listens anew after a connection failed early: " + error.what());
      timer_.after(kListenAgainDelay, [this] { listenAgain(1); });
    }
    return;
  }
  {
    const SendScope scope; // this pointer may be the last
    if (const auto same = listener.lock()) {
      acceptNext(same);
    }
  }
  guarded("a link that was accepted", [&] {
    accepted_(makeTensorPipeLink(std::move(pipe), relay_, buffers_));
  });
}

// One connection that ends before its first message, be it of a peer that was killed or unknown,
// closes a TensorPipe listener for good. A new one takes its place at the same address.
void TensorPipeContext::listenAgain(int attempt) {
  const auto reason = whyCannotListen(bound_); // the old listener may take a moment to close
  if (reason && attempt < kListenAgainAttempts) {
    timer_.after(kListenAgainDelay, [this, attempt] { listenAgain(attempt + 1); });
    return;
  }
  if (reason) {
    log(LogLevel::error, "can no longer listen on " + bound_ + ": " + *reason);
    return;
  }
  const std::shared_ptr<tp::Listener> listener = openListener(bound_);
  std::shared_ptr<tp::Listener> former;
  {
    MutexLock lock(mutex_);
    former = std::exchange(listener_, listener);
  }
  {
    const SendScope scope;
    former.reset();
  }
  acceptNext(listener);
}

std::shared_ptr<Link> TensorPipeContext::dial(const WorkerRecord& peer) {
  const MadeTransport& best = transports_.front();
  const bool sharesHost = peer.onHost.address.starts_with(best.entry->name + "://") &&
      best.context->canCommunicateWithRemote(peer.onHost.host);
  const SendScope scope;
  return makeTensorPipeLink(
      context_.connect(sharesHost ? peer.onHost.address : peer.address), relay_, buffers_);
}

namespace {

/// The descriptor of the host's memory, which every channel of the table is for; null: it has none.
const std::string* cpuDescriptorOf(const MadeChannel& channel) {
  const auto& devices = channel.context->deviceDescriptors();
  const auto cpu = devices.find(tp::Device(tp::kCpuDeviceType, 0));
  return cpu == devices.end() ? nullptr : &cpu->second;
}

template <typename Made>
const Made& entryNamed(const std::vector<Made>& made, const std::string& name) {
  return *std::find_if(
      made.begin(), made.end(), [&](const Made& one) { return one.entry->name == name; });
}

} // namespace

std::vector<char> TensorPipeContext::offer() const {
  Offer offer;
  for (const MadeTransport& transport : transports_) {
    offer.transports.descriptors.emplace_back(
        transport.entry->name, transport.context->domainDescriptor());
  }
  offer.transports.leftOut = environment_.failedTransports;
  for (const MadeChannel& channel : channels_) {
    const std::string* cpu = cpuDescriptorOf(channel);
    offer.channels.descriptors.emplace_back(channel.entry->name, cpu == nullptr ? "" : *cpu);
  }
  offer.channels.leftOut = environment_.failedChannels;
  offer.dialedAs = environment_.tcpEndpoint ? environment_.tcpEndpoint->dialedAs() : "";
  offer.host = host_;
  return offer.encode();
}

// TensorPipe chooses by the same rule but does not tell: the first, in order of preference, that both
// sides have and whose descriptors agree.
LinkDescription TensorPipeContext::describe(const std::vector<char>& peersOffer) const {
  const Offer peers = Offer::decode(peersOffer);
  auto transport = choose(
      environment_.knownTransports, peers.transports,
      [&](const std::string& name, const std::string& descriptor) {
        return whyTransportApart(name, descriptor);
      },
      "_transports");
  auto channel = choose(
      environment_.knownChannels, peers.channels,
      [&](const std::string& name, const std::string& descriptor) {
        return whyChannelApart(name, descriptor);
      },
      "_channels");
  const bool sharesHost = peers.host == host_ && !host_.empty();
  const SealedPeers::Peer sealed = transport.name == "wire_tcp"
      ? environment_.tcpEndpoint->sealedPeer(peers.dialedAs)
      : SealedPeers::Peer();
  const std::string encryption = sealed.arrivals ? nameOf(sealed.algorithm) : "";
  const std::string objection = sharesHost ? "" : objectionToPlain(transport.name, channel.name);
  return {
      std::move(transport.name),
      std::move(channel.name),
      encryption,
      objection,
      std::make_shared<const Alternatives>(
          Alternatives{std::move(transport.notTaken), std::move(channel.notTaken)}),
      sealed.arrivals};
}

/// What speaks against a link by these to a worker of another host; nothing where the text is empty.
std::string TensorPipeContext::objectionToPlain(
    const std::string& transport, const std::string& channel) const {
  if (options_.encryption == Encryption::off || transport == "none" || channel == "none") {
    return "";
  }
  const auto objection = [](const std::string& what, const std::string& name) {
    return "it is on another host, and its " + what + " with this worker, '" + name +
        "', cannot be encrypted: leave it out of _" + what +
        "s, or set encryption=False, on all workers";
  };
  if (!entryNamed(transports_, transport).entry->asksForProof) {
    return objection("transport", transport);
  }
  const std::string& lanes = entryNamed(channels_, channel).entry->lanes;
  const bool lanesArePlain = std::any_of(
      transportTable().begin(), transportTable().end(),
      [&](const TransportEntry& entry) { return entry.name == lanes && !entry.asksForProof; });
  return lanesArePlain ? objection("channel", channel) : "";
}

std::optional<Objection> TensorPipeContext::whyTransportApart(
    const std::string& name, const std::string& peers) const {
  const MadeTransport& transport = entryNamed(transports_, name);
  if (transport.context->canCommunicateWithRemote(peers)) {
    return std::nullopt;
  }
  return differenceOf(name, transport.context->domainDescriptor(), peers);
}

std::optional<Objection> TensorPipeContext::whyChannelApart(
    const std::string& name, const std::string& peers) const {
  const MadeChannel& channel = entryNamed(channels_, name);
  const std::string* own = cpuDescriptorOf(channel);
  if (own == nullptr) {
    return Objection{"it is not for the host's memory", ""};
  }
  if (channel.context->canCommunicateWithRemote(*own, peers)) {
    return std::nullopt;
  }
  return differenceOf(name, *own, peers);
}

void TensorPipeContext::admitObservers(AskForObserver ask) {
  if (environment_.tcpEndpoint) {
    observers_ = std::make_shared<ObserverServer>(environment_.tcpEndpoint, std::move(ask));
    observers_->open();
  }
}

void TensorPipeContext::join() {
  if (!joined_.exchange(true)) {
    if (observers_) {
      observers_->close();
    }
    {
      const SendScope scope;
      context_.join();
    }
    relay_->drain();
  }
}

} // namespace

std::unique_ptr<LinkContext> makeTensorPipeContext(
    TensorPipeOptions options, std::shared_ptr<BufferPool> buffers, Timer& timer) {
  return std::make_unique<TensorPipeContext>(std::move(options), std::move(buffers), timer);
}

void admitObservers(LinkContext& context, AskForObserver ask) {
  dynamic_cast<TensorPipeContext&>(context).admitObservers(std::move(ask));
}

} // namespace torchwire
