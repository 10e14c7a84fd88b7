// What can be put between TensorPipe's pipes and the channels by which they move large tensors.
#pragma once

#include <memory>

namespace tensorpipe::channel {
class Context;
}

namespace torchwire {

/// Where a LinkInterceptor has to see more of a large tensor than that it came: faults inside of one. It implements this
/// too, and the agent passes it on.
class ChannelInterceptor {
 public:
  virtual ~ChannelInterceptor() = default;

  /// Returns the channel, or something that wraps it. Called for each that a worker uses, while its agent starts.
  virtual std::shared_ptr<tensorpipe::channel::Context> wrapChannel(
      std::shared_ptr<tensorpipe::channel::Context> channel) = 0;
};

} // namespace torchwire
