// Makes and accepts links that are TensorPipe pipes, over the transports and channels that the options name.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/buffer_pool.h"
#include "backend/base/timer.h"
#include "backend/link/link.h"
#include "backend/tensorpipe/channel_interceptor.h"
#include "backend/transport/encryption.h"
#include "backend/wire/key_ring.h"

namespace torchwire {

class Loop;

struct TensorPipeOptions {
  std::string workerName; // shown in TensorPipe's own messages
  // Where to listen: "host" or "host:port" without a transport, IPv6 hosts in brackets if a port follows.
  std::string bindAddress;
  // What others dial in its stead (a NAT or a container's port mapping); empty: the bound address.
  std::string advertiseAddress;
  std::optional<std::vector<std::string>> transports; // nullopt: those by default
  std::optional<std::vector<std::string>> channels;
  std::shared_ptr<const KeyRing>
      keys; // what peers have to prove, where the transport can ask them; null: nothing
  // A peer that does not answer for twice as long is taken for gone. 0: never.
  std::chrono::milliseconds keepAlive{10000};
  std::chrono::milliseconds lossTimeout{0}; // see TcpOptions
  Encryption encryption = Encryption::automatic;
  std::vector<std::shared_ptr<ChannelInterceptor>> interceptors; // the innermost first
  std::shared_ptr<Loop> loop; // of torchwire's own transports, and for callbacks
};

/// `buffers`: where links receive large tensors.
/// The timer must outlive the context's listening and be stopped before the context is joined.
/// Throws std::runtime_error when a name is unknown or nothing usable is left.
std::unique_ptr<LinkContext> makeTensorPipeContext(
    TensorPipeOptions options, std::shared_ptr<BufferPool> buffers, Timer& timer);

} // namespace torchwire
