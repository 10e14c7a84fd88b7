#include "backend/tensorpipe/tcp_transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include "backend/base/address.h"
#include "backend/tensorpipe/context.h"
#include "backend/transport/endpoint.h"
#include "backend/transport/handshake_socket.h"
#include "backend/transport/tcp_stream.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kMinKeepAlive{2000};

void setOption(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 // Linux 6.15; older ones refuse it
#endif

/// The system's TCP sends the beats while nothing is under way: they cost this process nothing, and one that
/// is busy or stopped still answers. The last one is missed in time for a dead peer to show within two
/// intervals, whole seconds and all. While something is under way see AckWatch.
void keepAlive(int socket, milliseconds interval) {
  const auto wholeSeconds = [](milliseconds time) {
    return std::max(1, static_cast<int>(std::chrono::floor<seconds>(time).count()));
  };
  const int first = wholeSeconds(interval / 2);
  const int pause = wholeSeconds(interval / 4);
  setOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  setOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, first);
  setOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, pause);
  // While something is under way, or the peer has no room for it, the system asks ever more rarely. This
  // makes it ask as often as the beats, so that there are answers to look at.
  setOption(socket, IPPROTO_TCP, TCP_RTO_MAX_MS, 1000 * pause);
  setOption(socket, IPPROTO_TCP, TCP_KEEPCNT, (wholeSeconds(interval * 7 / 4) - first) / pause);
}

class TcpTraits final : public EndpointTraits {
 public:
  TcpTraits(AckWatch::Patience patience, Encryption encryption)
      : patience_(patience), encryption_(encryption) {}

  Medium medium() const override {
    return Medium::tcp;
  }
  std::string domain() const override {
    return "anywhere";
  }
  SocketAddress parse(const std::string& address) const override {
    return SocketAddress::tcp(address);
  }
  size_t memorySize() const override {
    return 0;
  }
  Encryption encryption() const override {
    return encryption_;
  }
  std::unique_ptr<Stream> makeStream(
      Loop& loop, int socket, std::optional<MemoryFile>, bool) const override {
    setOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    if (patience_.interval.count() != 0) {
      keepAlive(socket, patience_.interval);
    }
    auto addresses = addresses_.lock();
    if (!addresses) {
      addresses = std::make_shared<AddressWatch>(loop);
      addresses_ = addresses;
    }
    return std::make_unique<TcpStream>(loop, socket, patience_, std::move(addresses));
  }

 private:
  const AckWatch::Patience patience_;
  const Encryption encryption_;
  mutable std::weak_ptr<AddressWatch> addresses_; // of all connections; loop-bound
};

Descriptor listenOn(const std::string& where) {
  const SocketAddress address = SocketAddress::tcp(where);
  Descriptor listening(
      socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (listening.get() >= 0) {
    setOption(listening.get(), SOL_SOCKET, SO_REUSEADDR, 1); // a port that was used a moment ago
  }
  if (listening.get() < 0 || bind(listening.get(), address.get(), address.size()) != 0 ||
      listen(listening.get(), SOMAXCONN) != 0) {
    throw CannotListen(where, bindFailure(where, errno));
  }
  return listening;
}

} // namespace

std::shared_ptr<Endpoint> openTcpEndpoint(
    std::shared_ptr<Loop> loop, std::shared_ptr<const KeyRing> keys, const TcpOptions& options) {
  if (options.keepAlive.count() != 0 && options.keepAlive < kMinKeepAlive) {
    throw std::runtime_error("the keep-alive interval must be 0 or at least 2 s");
  }
  Descriptor listening = listenOn(options.bindAddress);
  const SocketAddress bound = SocketAddress::ofSocket(listening.get());
  const std::string address = options.advertiseAddress.empty()
      ? bound.describe()
      : withPort(options.advertiseAddress, bound.port());
  return Endpoint::open(
      std::move(loop), std::move(keys),
      std::make_unique<TcpTraits>(
          AckWatch::Patience{options.keepAlive, options.lossTimeout}, options.encryption),
      listening.take(), address);
}

std::shared_ptr<tensorpipe::transport::Context> makeTcpTransport(
    std::shared_ptr<Endpoint> endpoint, uint8_t lane) {
  return std::make_shared<TransportContext>(std::move(endpoint), lane);
}

} // namespace torchwire
