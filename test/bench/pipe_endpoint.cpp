#include "test/bench/pipe_endpoint.h"

#include <functional>
#include <future>
#include <stdexcept>
#include <vector>

#include "backend/base/address.h"
#include "backend/tensorpipe/shm_transport.h"
#include "backend/tensorpipe/tcp_transport.h"

namespace torchwire::bench {
namespace {

namespace tp = tensorpipe;

using Transport = std::shared_ptr<tp::transport::Context>;
using Channel = std::shared_ptr<tp::channel::Context>;
/// Makes the context of a lane: 0 is for pipes, the others are for channels.
using MakeLane = std::function<Transport(uint8_t lane)>;

constexpr const char* kHost = "127.0.0.1";
constexpr uint8_t kMptLanes = 2; // as in backend/tensorpipe/transport_table.cpp

std::shared_ptr<const KeyRing> groupKeys() {
  return std::make_shared<const KeyRing>(GroupKey(1, "as long as it has to be"));
}

MakeLane wireShmLanes() {
  return [transport = makeShmTransport(Loop::start("pipe_bench"), groupKeys())](uint8_t) {
    return transport;
  };
}

MakeLane wireTcpLanes() {
  TcpOptions options;
  options.bindAddress = kHost;
  options.keepAlive = std::chrono::milliseconds(0); // the processes are stopped now and then
  const auto endpoint = openTcpEndpoint(Loop::start("pipe_bench"), groupKeys(), options);
  return [endpoint](uint8_t lane) { return makeTcpTransport(endpoint, lane); };
}

MakeLane lanesOf(const std::string& transport) {
  if (transport == "shm") {
    return [](uint8_t) { return tp::transport::shm::create(); };
  }
  if (transport == "uv") {
    return [](uint8_t) { return tp::transport::uv::create(); };
  }
  if (transport == "wire_shm") {
    return wireShmLanes();
  }
  if (transport == "wire_tcp") {
    return wireTcpLanes();
  }
  throw std::runtime_error("unknown transport '" + transport + "'");
}

bool isNetworked(const std::string& transport) {
  return transport == "uv" || transport == "wire_tcp";
}

Channel makeMpt(const MakeLane& makeLane) {
  std::vector<Transport> contexts;
  std::vector<std::shared_ptr<tp::transport::Listener>> listeners;
  for (uint8_t lane = 1; lane <= kMptLanes; ++lane) {
    contexts.push_back(makeLane(lane));
    listeners.push_back(contexts.back()->listen(kHost));
  }
  return tp::channel::mpt::create(std::move(contexts), std::move(listeners));
}

Channel makeChannel(
    const std::string& name, const std::string& transport, const MakeLane& makeLane) {
  if (name == "basic") {
    return tp::channel::basic::create();
  }
  if (name == "cma") {
    return tp::channel::cma::create();
  }
  if (name == "mpt" && isNetworked(transport)) {
    return makeMpt(makeLane);
  }
  throw std::runtime_error("no channel '" + name + "' over " + transport);
}

template <typename Context>
Context viable(Context context, const std::string& name) {
  if (!context || !context->isViable()) {
    throw std::runtime_error(name + " does not work on this machine");
  }
  return context;
}

} // namespace

Endpoint::Endpoint(const std::string& contestant)
    : transport_(contestant.substr(0, contestant.find('/'))) {
  const MakeLane makeLane = lanesOf(transport_);
  context_.registerTransport(0, transport_, viable(makeLane(0), transport_));
  if (transport_ != contestant) {
    const std::string channel = contestant.substr(transport_.size() + 1);
    context_.registerChannel(
        0, channel, viable(makeChannel(channel, transport_, makeLane), channel));
  }
}

Endpoint::~Endpoint() {
  join();
}

std::string Endpoint::listen() {
  listener_ = context_.listen(
      {transport_ + "://" + (isNetworked(transport_) ? kHost : uniqueShmAddress())});
  return listener_->url(transport_);
}

std::shared_ptr<tp::Pipe> Endpoint::accept() {
  std::promise<std::shared_ptr<tp::Pipe>> accepted;
  listener_->accept([&](const tp::Error& error, std::shared_ptr<tp::Pipe> pipe) {
    if (error) {
      accepted.set_exception(std::make_exception_ptr(std::runtime_error(error.what())));
    } else {
      accepted.set_value(std::move(pipe));
    }
  });
  return accepted.get_future().get();
}

std::shared_ptr<tp::Pipe> Endpoint::dial(const std::string& url) {
  return context_.connect(url);
}

void Endpoint::join() {
  context_.join();
}

} // namespace torchwire::bench
