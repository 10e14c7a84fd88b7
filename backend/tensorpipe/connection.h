// A message stream as TensorPipe's transport::Connection.
#pragma once

#include <tensorpipe/transport/connection.h>

#include <memory>

#include "backend/transport/message_stream.h"

namespace torchwire {

/// TensorPipe's form of an error, and back; none of what is not torchwire's.
tensorpipe::Error toTensorPipe(const Error& error);
ErrorCode codeIn(const tensorpipe::Error& error);

/// Closes its message stream when it goes. Thread-safe.
class Connection final : public tensorpipe::transport::Connection {
 public:
  explicit Connection(std::shared_ptr<MessageStream> stream);
  ~Connection() override;

  void read(read_callback_fn fn) override;
  void read(void* ptr, size_t length, read_callback_fn fn) override;
  void read(tensorpipe::AbstractNopHolder& object, read_nop_callback_fn fn) override;
  void write(const void* ptr, size_t length, write_callback_fn fn) override;
  void write(const tensorpipe::AbstractNopHolder& object, write_callback_fn fn) override;
  void setId(std::string id) override;
  void close() override;

 private:
  const std::shared_ptr<MessageStream> stream_;
};

} // namespace torchwire
