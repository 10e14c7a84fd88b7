#include "backend/transport/endpoint.h"

#include <unistd.h>

#include <stdexcept>
#include <utility>

#include "backend/base/log.h"
#include "backend/transport/sealed_stream.h"

namespace torchwire {
namespace {

struct LaneAddress {
  std::string address;
  uint8_t lane;
};

/// "address/lane", or "address" for lane 0.
LaneAddress splitLane(const std::string& text) {
  const size_t slash = text.rfind('/');
  if (slash == std::string::npos) {
    return {text, 0};
  }
  const std::string lane = text.substr(slash + 1);
  const bool isNumber = !lane.empty() && lane.size() <= 3 &&
      lane.find_first_not_of("0123456789") == std::string::npos;
  if (!isNumber || std::stoi(lane) > UINT8_MAX) {
    throw std::runtime_error("'" + text + "' does not end with a lane, a number below 256");
  }
  return {text.substr(0, slash), static_cast<uint8_t>(std::stoi(lane))};
}

} // namespace

Endpoint::Endpoint(
    std::shared_ptr<Loop> loop, std::shared_ptr<const KeyRing> keys,
    std::unique_ptr<EndpointTraits> traits, std::string address)
    : kept_(std::move(loop)),
      loop_(*kept_),
      keys_(std::move(keys)),
      traits_(std::move(traits)),
      address_(std::move(address)),
      dialedAs_(traits_->parse(address_).describe()) {}

std::shared_ptr<Endpoint> Endpoint::open(
    std::shared_ptr<Loop> loop, std::shared_ptr<const KeyRing> keys,
    std::unique_ptr<EndpointTraits> traits, int listeningSocket, std::string address) {
  std::shared_ptr<Endpoint> endpoint(
      new Endpoint(std::move(loop), std::move(keys), std::move(traits), std::move(address)),
      [](Endpoint* last) {
        // What it holds is the loop's; but the loop's last pointer must not go on its own thread.
        const std::shared_ptr<Loop> loop = std::move(last->kept_);
        loop->post([last] { delete last; }); // NOLINT(cppcoreguidelines-owning-memory)
      });
  endpoint->loop_.post([endpoint, listeningSocket] { endpoint->openAcceptor(listeningSocket); });
  return endpoint;
}

Endpoint::~Endpoint() = default;

void Endpoint::openAcceptor(int listeningSocket) {
  loop_.expectOnLoop();
  Acceptor::Events events;
  events.hasLane = [this](uint8_t lane) { return lanes_.contains(lane); };
  events.admitted = [this](Acceptor::Admitted admitted) { admit(std::move(admitted)); };
  acceptor_ = std::make_unique<Acceptor>(
      loop_, listeningSocket, keys_,
      Acceptor::Place{dialedAs_, traits_->medium(), traits_->memorySize(), traits_->encryption()},
      std::move(events));
}

std::string Endpoint::addressOf(uint8_t lane) const {
  return lane == 0 ? address_ : address_ + "/" + std::to_string(lane);
}

void Endpoint::setLane(uint8_t lane, Admitted admitted) {
  loop_.expectOnLoop();
  if (admitted) {
    lanes_[lane] = std::move(admitted);
  } else {
    lanes_.erase(lane);
  }
}

void Endpoint::admit(Acceptor::Admitted peer) {
  loop_.expectOnLoop();
  std::unique_ptr<Stream> stream =
      makeStream(peer.socket, std::move(peer.memory), false, peer.dialer, peer.sealedBy);
  const auto lane = lanes_.find(peer.lane);
  if (lane != lanes_.end()) { // else it was closed during the handshake
    const Admitted admitted = lane->second;
    admitted(std::move(stream));
  }
}

void Endpoint::dial(const std::string& address, Dialed dialed) {
  loop_.expectOnLoop();
  std::optional<Connector::Target> target;
  try {
    const LaneAddress parts = splitLane(address);
    target = {traits_->parse(parts.address), traits_->medium(),     parts.lane,
              traits_->memorySize(),         traits_->encryption(), dialedAs_};
  } catch (const std::exception& e) {
    dialed(Error(ErrorCode::unreachable, e.what()), nullptr);
    return;
  }
  const uint64_t number = nextConnector_++;
  auto connector = std::make_unique<Connector>(
      loop_, keys_, *target,
      [this, number, peer = tagOf(target->address.describe()), dialed = std::move(dialed)](
          const Error& error, Connector::Reached reached) {
        onDialed(number, peer, error, std::move(reached), dialed);
      });
  Connector& started = *connector;
  connectors_.emplace(number, std::move(connector));
  started.start();
}

void Endpoint::onDialed(
    uint64_t number, uint64_t peer, const Error& error, Connector::Reached reached,
    const Dialed& dialed) {
  loop_.expectOnLoop();
  connectors_.erase(number);
  if (error) {
    dialed(error, nullptr);
    return;
  }
  std::unique_ptr<Stream> stream;
  Error failed;
  try {
    stream = makeStream(reached.socket, std::move(reached.memory), true, peer, reached.sealedBy);
  } catch (const std::exception& e) { // for want of memory
    failed = Error(ErrorCode::linkBroken, e.what());
  }
  dialed(failed, std::move(stream));
}

std::unique_ptr<Stream> Endpoint::makeStream(
    int socket, std::optional<MemoryFile> memory, bool dialed, uint64_t peer,
    const std::optional<SealedBy>& sealedBy) {
  std::unique_ptr<Stream> stream = traits_->makeStream(loop_, socket, std::move(memory), dialed);
  if (!sealedBy) {
    return stream;
  }
  return std::make_unique<SealedStream>(
      loop_, std::move(stream), sealedBy->outgoing, sealedBy->incoming,
      peer == 0 ? nullptr : sealedPeers_->add(peer, sealedBy->outgoing.algorithm));
}

} // namespace torchwire
