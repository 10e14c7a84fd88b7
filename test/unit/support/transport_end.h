// One end of a connection, with operations that keep their buffers and note what became of them.
#pragma once

#include <nop/structure.h>
#include <tensorpipe/transport/connection.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "test/unit/support/callback_ledger.h"

namespace torchwire {

using TpConnection = tensorpipe::transport::Connection;
using TpError = tensorpipe::Error;

/// A callback that notes its error.
std::function<void(const TpError&)> noting(CallbackNote& note);

/// Bytes without a period, so that one that is lost, doubled or in the wrong place shows.
std::string patterned(size_t size, uint64_t seed = 1);

/// What a read brought. The bytes are to be looked at once the note says that it was called.
struct Reading {
  explicit Reading(CallbackNote& n) : note(n) {}

  /// Not for an assertion's operand: Catch2 would print all 64 MiB of a difference.
  bool brought(const std::string& expected) const {
    return note.succeeded() && bytes == expected;
  }
  bool failed() const {
    return note.called() && note.error();
  }

  CallbackNote& note;
  std::string bytes;
};

/// An object of libnop's, as TensorPipe's own messages are.
struct Parcel {
  std::string label;
  uint64_t number = 0;
  std::vector<uint32_t> items;
  NOP_STRUCTURE(Parcel, label, number, items);

  bool operator==(const Parcel&) const = default;
};

/// A read of a Parcel.
struct ParcelReading {
  explicit ParcelReading(CallbackNote& n) : note(n) {}

  CallbackNote& note;
  Parcel parcel;
};

/// Many callbacks under one note: called when all of them have come, in the order in which they were
/// handed out and without an error; or at the first that did not. Thread-safe.
class CallbackSeries : public std::enable_shared_from_this<CallbackSeries> {
 public:
  CallbackSeries(CallbackNote& note, size_t count) : note_(note), count_(count) {}

  /// The next of the callbacks. To be asked for `count` times.
  std::function<void(const TpError&)> next() EXCLUDES(mutex_);
  /// For a callback that finds something wrong itself.
  void arrived(size_t index, const TpError& error, bool asExpected = true) EXCLUDES(mutex_);

 private:
  CallbackNote& note_;
  const size_t count_;
  Mutex mutex_{LockRank::test};
  size_t handedOut_ GUARDED_BY(mutex_) = 0;
  size_t arrived_ GUARDED_BY(mutex_) = 0;
  bool failed_ GUARDED_BY(mutex_) = false;
};

/// A connection whose operations are expected in the ledger. Buffers live until the callback and no
/// longer, so that a sanitizer sees who uses them later. As thread-safe as the connection.
class TransportEnd {
 public:
  TransportEnd() = default;
  TransportEnd(CallbackLedger& ledger, std::string name, std::shared_ptr<TpConnection> connection)
      : ledger_(&ledger), name_(std::move(name)), connection_(std::move(connection)) {}

  CallbackNote& write(std::string bytes);
  CallbackNote& write(Parcel parcel);
  /// Into memory that the transport allocates.
  std::shared_ptr<Reading> read();
  /// Into memory of the caller's.
  std::shared_ptr<Reading> readInto(size_t length);
  std::shared_ptr<ParcelReading> readParcel();

  /// Writes all of them in order, under one note.
  CallbackNote& writeAll(std::vector<std::string> messages);
  /// Expects all of them in order, under one note.
  CallbackNote& readAll(std::vector<std::string> messages);

  void close() {
    connection_->close();
  }
  /// Forgets the connection without closing it.
  void drop() {
    connection_.reset();
  }
  const std::shared_ptr<TpConnection>& connection() const {
    return connection_;
  }

 private:
  CallbackNote& note(const std::string& what) {
    return ledger_->note("the " + name_ + "'s " + what);
  }

  CallbackLedger* ledger_ = nullptr;
  std::string name_;
  std::shared_ptr<TpConnection> connection_;
};

} // namespace torchwire
