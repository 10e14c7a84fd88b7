#include "backend/transport/port.h"

#include <unistd.h>

#include <stdexcept>
#include <utility>

#include "backend/log.h"

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

Port::Port(
    std::shared_ptr<Loop> loop, const GroupKey& key, std::unique_ptr<PortKind> kind,
    std::string address)
    : kept_(std::move(loop)),
      loop_(*kept_),
      key_(key),
      kind_(std::move(kind)),
      address_(std::move(address)) {}

std::shared_ptr<Port> Port::open(
    std::shared_ptr<Loop> loop, const GroupKey& key, std::unique_ptr<PortKind> kind,
    int listeningSocket, std::string address) {
  std::shared_ptr<Port> port(
      new Port(std::move(loop), key, std::move(kind), std::move(address)), [](Port* last) {
        // What it holds is the loop's; but the loop's last pointer must not go on its own thread.
        const std::shared_ptr<Loop> loop = std::move(last->kept_);
        loop->post([last] { delete last; }); // NOLINT(cppcoreguidelines-owning-memory)
      });
  port->loop_.post([port, listeningSocket] { port->openDoor(listeningSocket); });
  return port;
}

Port::~Port() = default;

void Port::openDoor(int listeningSocket) {
  Door::Events events;
  events.hasLane = [this](uint8_t lane) { return lanes_.contains(lane); };
  events.admitted = [this](Door::Admitted admitted) { admit(std::move(admitted)); };
  door_ = std::make_unique<Door>(
      loop_, listeningSocket, key_, kind_->medium(), kind_->memorySize(), std::move(events));
}

std::string Port::addressOf(uint8_t lane) const {
  return lane == 0 ? address_ : address_ + "/" + std::to_string(lane);
}

void Port::setLane(uint8_t lane, Newcomer newcomer) {
  if (newcomer) {
    lanes_[lane] = std::move(newcomer);
  } else {
    lanes_.erase(lane);
  }
}

void Port::admit(Door::Admitted admitted) {
  std::unique_ptr<Stream> stream =
      kind_->makeStream(loop_, admitted.socket, std::move(admitted.memory), false);
  const auto lane = lanes_.find(admitted.lane);
  if (lane != lanes_.end()) { // else it was closed during the handshake
    const Newcomer newcomer = lane->second;
    newcomer(std::move(stream));
  }
}

void Port::dial(const std::string& address, Dialled dialled) {
  std::optional<Dialler::Target> target;
  try {
    const LaneAddress parts = splitLane(address);
    target = {kind_->parse(parts.address), kind_->medium(), parts.lane, kind_->memorySize()};
  } catch (const std::exception& e) {
    dialled(Error(ErrorCode::unreachable, e.what()), nullptr);
    return;
  }
  const uint64_t number = nextDialler_++;
  auto dialler = std::make_unique<Dialler>(
      loop_, key_, *target,
      [this, number, dialled = std::move(dialled)](const Error& error, Dialler::Reached reached) {
        onDialled(number, error, std::move(reached), dialled);
      });
  Dialler& started = *dialler;
  diallers_.emplace(number, std::move(dialler));
  started.start();
}

void Port::onDialled(
    uint64_t number, const Error& error, Dialler::Reached reached, const Dialled& dialled) {
  diallers_.erase(number);
  if (error) {
    dialled(error, nullptr);
  } else {
    dialled(error, kind_->makeStream(loop_, reached.socket, std::move(reached.memory), true));
  }
}

} // namespace torchwire
