// What can be put between the protocol and the links of a worker.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/base/timer.h"
#include "backend/link/link.h"

namespace torchwire {

/// Sees every frame of a worker on its way out and in: checksums, and in the fault-injection build faults.
/// A worker that has no interceptors pays nothing for them. Each method returns what it was given, or something
/// that wraps it; all are called once, while the agent starts. The timer stops before the links
/// are joined. Thread-safe.
class LinkInterceptor {
 public:
  virtual ~LinkInterceptor() = default;

  /// Its bit of WorkerRecord::linkOptions: all workers of a group have the interceptor, or none.
  virtual uint32_t linkOption() const = 0;

  /// The links to peers.
  virtual std::unique_ptr<LinkContext> wrap(std::unique_ptr<LinkContext> links, Timer& /*timer*/) {
    return links;
  }
  /// The link of the worker to itself.
  virtual std::shared_ptr<Link> wrapLoopback(std::shared_ptr<Link> link, Timer& /*timer*/) {
    return link;
  }
};

} // namespace torchwire
