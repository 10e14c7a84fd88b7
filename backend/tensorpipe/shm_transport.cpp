#include "backend/tensorpipe/shm_transport.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "backend/base/process_identity.h"
#include "backend/base/random.h"
#include "backend/tensorpipe/context.h"
#include "backend/transport/endpoint.h"
#include "backend/transport/handshake_socket.h"
#include "backend/transport/shm_stream.h"

namespace torchwire {
namespace {

std::string namespaceOf(const std::string& traits) {
  const std::string path = "/proc/self/ns/" + traits;
  char name[PATH_MAX] = "";
  const ssize_t length = readlink(path.c_str(), name, sizeof name);
  if (length <= 0) {
    throw std::runtime_error("cannot tell which processes are on this host: no " + path);
  }
  return std::string(name, static_cast<size_t>(length));
}

/// Abstract Unix sockets are reached within one network namespace of one running kernel; memory is shared
/// with processes of the same user only, and users have the same numbers in one user namespace.
std::string domainOfThisProcess() {
  const std::string boot = ProcessIdentity::ofThisProcess().boot;
  if (boot.empty()) {
    throw std::runtime_error(
        "cannot tell which processes are on this host: /proc does not say which this is");
  }
  return boot + " " + namespaceOf("net") + " " + namespaceOf("user") + " " +
      std::to_string(geteuid());
}

class ShmTraits final : public EndpointTraits {
 public:
  Medium medium() const override {
    return Medium::shm;
  }
  std::string domain() const override {
    return domain_;
  }
  SocketAddress parse(const std::string& address) const override {
    return SocketAddress::abstractUnix(address);
  }
  size_t memorySize() const override {
    return ShmStream::memorySize();
  }
  Encryption encryption() const override { // the kernel says who it is, and nobody is in between
    return Encryption::off;
  }
  std::unique_ptr<Stream> makeStream(
      Loop& loop, int socket, std::optional<MemoryFile> memory, bool dialed) const override {
    return std::make_unique<ShmStream>(loop, socket, std::move(*memory), dialed);
  }

 private:
  const std::string domain_ = domainOfThisProcess();
};

/// A name that nobody has drawn before.
std::string drawName() {
  return "torchwire-" + std::to_string(getpid()) + "-" + std::to_string(randomNumber());
}

Descriptor listenAs(const std::string& name) {
  const SocketAddress address = SocketAddress::abstractUnix(name);
  Descriptor listening(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (listening.get() < 0 || bind(listening.get(), address.get(), address.size()) != 0 ||
      listen(listening.get(), SOMAXCONN) != 0) {
    throw std::runtime_error(
        std::string("cannot listen on a Unix socket: ") + std::strerror(errno));
  }
  return listening;
}

} // namespace

std::shared_ptr<tensorpipe::transport::Context> makeShmTransport(
    std::shared_ptr<Loop> loop, std::shared_ptr<const KeyRing> keys) {
  MemoryFile::create(ShmStream::memorySize()); // throws where there is none to be had
  auto traits = std::make_unique<ShmTraits>();
  const std::string name = drawName();
  Descriptor listening = listenAs(name);
  return std::make_shared<TransportContext>(
      Endpoint::open(std::move(loop), std::move(keys), std::move(traits), listening.take(), name),
      uint8_t{0});
}

} // namespace torchwire
