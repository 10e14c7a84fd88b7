#include "backend/tensorpipe/connection.h"

#include <utility>
#include <vector>

#include "backend/tensorpipe/nop_value.h"

namespace torchwire {
namespace {

namespace tp = tensorpipe;

class TransportError final : public tp::BaseError {
 public:
  explicit TransportError(const Error& error) : code_(error.code()), sentence_(error.message()) {}
  std::string what() const override {
    return sentence_;
  }
  ErrorCode code() const {
    return code_;
  }

 private:
  const ErrorCode code_;
  const std::string sentence_;
};

Error parse(tp::AbstractNopHolder& object, const char* data, size_t length) {
  if (!isNopValue(data, length)) {
    return Error(
        ErrorCode::badFrame, "cannot read what the peer sent: it is no object, or not a whole one");
  }
  tp::NopReader reader(reinterpret_cast<const uint8_t*>(data), length);
  const nop::Status<void> status = object.read(reader);
  return status.has_error()
      ? Error(
            ErrorCode::badFrame,
            std::string("cannot read what the peer sent: ") + status.GetErrorMessage())
      : Error();
}

MessageStream::Written forWritten(std::function<void(const tp::Error&)> fn) {
  return [fn = std::move(fn)](const Error& error) { fn(toTensorPipe(error)); };
}

MessageStream::Read forRead(tp::transport::Connection::read_callback_fn fn) {
  return [fn = std::move(fn)](const Error& error, const char* data, size_t length) {
    fn(toTensorPipe(error), data, length);
  };
}

} // namespace

tp::Error toTensorPipe(const Error& error) {
  return error ? tp::Error(std::make_shared<TransportError>(error), __FILE__, __LINE__)
               : tp::Error::kSuccess;
}

ErrorCode codeIn(const tp::Error& error) {
  const auto ours = error.castToType<TransportError>();
  return ours ? ours->code() : ErrorCode::none;
}

Connection::Connection(std::shared_ptr<MessageStream> stream) : stream_(std::move(stream)) {}

Connection::~Connection() {
  stream_->close();
}

void Connection::read(read_callback_fn fn) {
  stream_->readMessage(forRead(std::move(fn)));
}

void Connection::read(void* ptr, size_t length, read_callback_fn fn) {
  stream_->readInto(ptr, length, forRead(std::move(fn)));
}

void Connection::read(tp::AbstractNopHolder& object, read_nop_callback_fn fn) {
  stream_->readMessage([&object, stream = stream_.get(), fn = std::move(fn)](
                           const Error& error, const char* data, size_t length) {
    const Error failed = error ? error : parse(object, data, length);
    if (failed && !error) {
      stream->close();
    }
    fn(toTensorPipe(failed));
  });
}

void Connection::write(const void* ptr, size_t length, write_callback_fn fn) {
  stream_->write(ptr, length, forWritten(std::move(fn)));
}

void Connection::write(const tp::AbstractNopHolder& object, write_callback_fn fn) {
  std::vector<char> message(object.getSize());
  tp::NopWriter writer(reinterpret_cast<uint8_t*>(message.data()), message.size());
  if (object.write(writer).has_error()) { // of too little room, which there is
    stream_->close();
  }
  stream_->write(std::move(message), forWritten(std::move(fn)));
}

// TensorPipe's names are for its own log.
void Connection::setId(std::string) {}

void Connection::close() {
  stream_->close();
}

} // namespace torchwire
