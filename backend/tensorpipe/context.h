// A lane of an endpoint as TensorPipe's transport::Context.
#pragma once

#include <tensorpipe/transport/context.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/tensorpipe/listener.h"
#include "backend/transport/endpoint.h"
#include "backend/transport/message_streams.h"

namespace torchwire {

/// Joins when it goes, which must not be on the loop's thread. Thread-safe.
class TransportContext final : public tensorpipe::transport::Context {
 public:
  TransportContext(std::shared_ptr<Endpoint> endpoint, uint8_t lane);
  ~TransportContext() override;

  std::shared_ptr<tensorpipe::transport::Connection> connect(std::string address) override;
  /// Listens on the endpoint's own address, whatever `address` says.
  std::shared_ptr<tensorpipe::transport::Listener> listen(std::string address) override;
  bool isViable() const override;
  const std::string& domainDescriptor() const override;
  void setId(std::string id) override;
  void close() override;
  void join() override;

 private:
  const std::shared_ptr<Endpoint> endpoint_;
  const uint8_t lane_;
  const std::string domain_;
  const std::shared_ptr<MessageStreams> streams_;

  Mutex mutex_{LockRank::transportContext};
  std::vector<std::shared_ptr<AcceptQueue>> acceptQueues_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

} // namespace torchwire
