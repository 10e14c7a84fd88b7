// One process's end of what is measured: a TensorPipe context with one transport.
#pragma once

#include <tensorpipe/tensorpipe.h>

#include <memory>
#include <string>

namespace torchwire::bench {

/// Holds the context, so the transport's threads live as long as this.
class Endpoint {
 public:
  /// Of "uv", or "uv/basic" with a channel for tensors. Throws std::runtime_error when there is no such
  /// transport or channel, or it does not work here.
  explicit Endpoint(const std::string& contestant);
  ~Endpoint();

  /// The address for the other process's dial().
  std::string listen();
  std::shared_ptr<tensorpipe::Pipe> accept();
  std::shared_ptr<tensorpipe::Pipe> dial(const std::string& url);
  /// Closes all pipes; no callback comes after this.
  void join();

 private:
  const std::string transport_;
  tensorpipe::Context context_;
  std::shared_ptr<tensorpipe::Listener> listener_;
};

} // namespace torchwire::bench
