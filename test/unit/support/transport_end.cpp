#include "test/unit/support/transport_end.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace torchwire {
namespace {

using tensorpipe::NopHolder;

Error toError(const TpError& error) {
  return error ? Error(ErrorCode::linkBroken, error.what()) : Error();
}

} // namespace

std::function<void(const TpError&)> noting(CallbackNote& note) {
  return [&note](const TpError& error) { note.add(toError(error)); };
}

std::string patterned(size_t size, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1; // xorshift must not start from 0
  std::string bytes(size, '\0');
  for (size_t at = 0; at < size; at += sizeof(state)) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(bytes.data() + at, &state, std::min(sizeof(state), size - at));
  }
  return bytes;
}

std::function<void(const TpError&)> CallbackSeries::next() {
  MutexLock lock(mutex_);
  return [self = shared_from_this(), index = handedOut_++](const TpError& error) {
    self->arrived(index, error);
  };
}

void CallbackSeries::arrived(size_t index, const TpError& error, bool asExpected) {
  std::optional<Error> outcome;
  {
    MutexLock lock(mutex_);
    const bool inOrder = index == arrived_++;
    if (failed_) {
      return;
    }
    if (error) {
      outcome = toError(error);
    } else if (!inOrder || !asExpected) {
      const std::string what = inOrder ? "other bytes than expected" : "a callback out of order";
      outcome = Error(ErrorCode::badFrame, what + " at number " + std::to_string(index));
    } else if (arrived_ == count_) {
      outcome = Error();
    }
    failed_ = outcome && *outcome;
  }
  if (outcome) {
    note_.add(*outcome);
  }
}

CallbackNote& TransportEnd::write(std::string bytes) {
  CallbackNote& written = note("write of " + std::to_string(bytes.size()) + " bytes");
  auto buffer = std::make_shared<std::string>(std::move(bytes));
  const std::string& text = *buffer;
  connection_->write(
      text.empty() ? nullptr : text.data(), text.size(),
      [&written, buffer = std::move(buffer)](const TpError& error) mutable {
        buffer.reset();
        written.add(toError(error));
      });
  return written;
}

CallbackNote& TransportEnd::write(Parcel parcel) {
  CallbackNote& written = note("write of parcel " + parcel.label.substr(0, 20));
  auto holder = std::make_shared<NopHolder<Parcel>>();
  holder->getObject() = std::move(parcel);
  const auto& object = *holder;
  connection_->write(object, [&written, holder = std::move(holder)](const TpError& error) mutable {
    holder.reset();
    written.add(toError(error));
  });
  return written;
}

std::shared_ptr<Reading> TransportEnd::read() {
  auto reading = std::make_shared<Reading>(note("read"));
  connection_->read([reading](const TpError& error, const void* data, size_t length) {
    if (!error) {
      reading->bytes.assign(static_cast<const char*>(data), length);
    }
    reading->note.add(toError(error));
  });
  return reading;
}

std::shared_ptr<Reading> TransportEnd::readInto(size_t length) {
  auto reading = std::make_shared<Reading>(note("read of " + std::to_string(length) + " bytes"));
  auto buffer = std::make_shared<std::vector<char>>(length); // of exactly this size, for ASan
  void* target = length ? buffer->data() : nullptr;
  connection_->read(
      target, length,
      [reading, target, length, buffer = std::move(buffer)](
          const TpError& error, const void* data, size_t size) mutable {
        Error outcome = toError(error);
        if (!error && (data != target || size != length)) {
          outcome = Error(ErrorCode::badFrame, "the callback names another buffer");
        } else if (!error) {
          reading->bytes.assign(buffer->begin(), buffer->end());
        }
        buffer.reset();
        reading->note.add(outcome);
      });
  return reading;
}

std::shared_ptr<ParcelReading> TransportEnd::readParcel() {
  auto reading = std::make_shared<ParcelReading>(note("read of a parcel"));
  auto holder = std::make_shared<NopHolder<Parcel>>();
  auto& object = *holder;
  connection_->read(object, [reading, holder = std::move(holder)](const TpError& error) mutable {
    reading->parcel = std::move(holder->getObject());
    holder.reset();
    reading->note.add(toError(error));
  });
  return reading;
}

CallbackNote& TransportEnd::writeAll(std::vector<std::string> messages) {
  CallbackNote& all = note("writes of " + std::to_string(messages.size()) + " messages");
  const auto series = std::make_shared<CallbackSeries>(all, messages.size());
  for (std::string& message : messages) {
    auto buffer = std::make_shared<std::string>(std::move(message));
    const std::string& text = *buffer;
    connection_->write(
        text.data(), text.size(),
        [noted = series->next(), buffer = std::move(buffer)](const TpError& error) mutable {
          buffer.reset();
          noted(error);
        });
  }
  return all;
}

CallbackNote& TransportEnd::readAll(std::vector<std::string> messages) {
  CallbackNote& all = note("reads of " + std::to_string(messages.size()) + " messages");
  const auto series = std::make_shared<CallbackSeries>(all, messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    connection_->read([series, i, expected = std::move(messages[i])](
                          const TpError& error, const void* data, size_t length) {
      const bool same = !error && length == expected.size() &&
          (length == 0 || std::memcmp(data, expected.data(), length) == 0);
      series->arrived(i, error, same);
    });
  }
  return all;
}

} // namespace torchwire
