// Messages over a stream: a length, then that many bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/error.h"
#include "backend/base/task.h"
#include "backend/transport/loop.h"
#include "backend/transport/stall_watch.h"
#include "backend/transport/stream.h"
#include "backend/transport/write_batch.h"

namespace torchwire {

/// One end of a connection. Reads and writes may be asked for at any time; they are served in order, each
/// message written by one read. Callbacks are called exactly once, in order, on the loop's thread and
/// never inside the call that took them. After an error everything fails, but what had arrived before it
/// can still be read. Thread-safe, except for what is called loop-bound.
class MessageStream final : public BatchedWrites,
                            public std::enable_shared_from_this<MessageStream> {
 public:
  using Written = std::function<void(const Error&)>;
  /// The bytes live until the callback returns.
  using Read = std::function<void(const Error&, const char* data, size_t length)>;

  /// The longest message for which memory is allocated on the word of the peer.
  static constexpr uint64_t kMaxAllocation = uint64_t{256} << 20; // bytes
  /// The longest message before the peer is known to mean well by TensorPipe's own greeting.
  static constexpr uint64_t kMaxFirstMessage = uint64_t{64} << 10; // bytes

  /// `ended` is called on the loop, after the last callback, once close() was called.
  MessageStream(std::shared_ptr<Loop> loop, std::function<void()> ended);

  /// The memory must stay until the callback. One message.
  void write(const void* data, size_t length, Written written) EXCLUDES(mutex_);
  void write(std::vector<char> message, Written written) EXCLUDES(mutex_);
  /// The next message, which must be exactly that long.
  void readInto(void* into, size_t length, Read read) EXCLUDES(mutex_);
  /// The next message, however long, up to kMaxAllocation.
  void readMessage(Read read) EXCLUDES(mutex_);

  /// See BatchedWrites.
  void flush() override EXCLUDES(mutex_);
  /// Fails what is pending; nothing more is sent or received. Idempotent.
  void close() EXCLUDES(mutex_);

  /// The connection stands. Loop-bound.
  void start(std::unique_ptr<Stream> stream) EXCLUDES(mutex_);
  /// It will never stand, or breaks. The first error is the one that is told. Loop-bound.
  void fail(const Error& error) EXCLUDES(mutex_);
  /// Reads the first message ahead, and says when it is there, or that it will not come (an error).
  /// Call before start(). The next read gets that message.
  void expectFirstMessage(Written there) EXCLUDES(mutex_);

  Loop& loop() {
    return *loop_;
  }

 private:
  struct WriteOp {
    uint64_t header; // the length, as it travels
    const void* data;
    size_t length;
    std::vector<char> owned; // keeps data, if not the caller does
    Written written;
    size_t sent = 0; // of header and data
  };
  struct ReadOp {
    void* into;
    size_t length; // the message is to be exactly that long; when allocating: at most
    bool allocate;
    bool readAhead; // see expectFirstMessage
    Read read;
  };

  // Any thread.
  void push(WriteOp op) EXCLUDES(mutex_);
  WriteBatch* currentBatch() const;
  void keepBack(WriteOp op, WriteBatch& batch) EXCLUDES(mutex_);
  void push(ReadOp op) EXCLUDES(mutex_);
  void pumpWrites() EXCLUDES(mutex_);
  size_t gather(iovec* parts, size_t& bytes) const REQUIRES(mutex_);
  void advanceWrites(size_t bytes) REQUIRES(mutex_);
  enum class Urgency { now, quiet };
  void schedule(Urgency urgency = Urgency::now) REQUIRES(mutex_);

  // Loop-bound.
  void advance() EXCLUDES(mutex_);
  void pumpReads() EXCLUDES(mutex_);
  ReadOp* nextRead() EXCLUDES(mutex_);
  bool readHeader(const ReadOp& op);
  bool readBody(const ReadOp& op);
  bool receive(void* into, size_t wanted, size_t& got);
  void serveFirstMessage(const ReadOp& op);
  void finishRead(const char* data) EXCLUDES(mutex_);
  void breakReads(const Error& error) EXCLUDES(mutex_);
  void settle() EXCLUDES(mutex_);
  void watchForStall() REQUIRES(mutex_);
  bool callBack() EXCLUDES(mutex_);

  const std::shared_ptr<Loop> loop_;

  // Loop-bound: the message that is being read, and more.
  uint64_t header_ = 0; // its length
  size_t headerRead_ = 0;
  size_t bodyRead_ = 0;
  std::vector<char> allocated_;
  std::optional<std::vector<char>> firstMessage_;
  size_t readThisTurn_ = 0; // bytes
  uint64_t arrived_ = 0; // bytes, in all
  std::optional<StallWatch> stall_;
  Stream* reading_ = nullptr; // stream_
  bool advancing_ = false;
  std::function<void()> ended_;

  Mutex mutex_{LockRank::messageStream};
  std::unique_ptr<Stream> stream_ GUARDED_BY(mutex_); // set and reset on the loop
  std::deque<WriteOp> writes_ GUARDED_BY(mutex_);
  std::deque<ReadOp> reads_ GUARDED_BY(mutex_); // taken off on the loop only
  std::vector<Task> done_ GUARDED_BY(mutex_); // callbacks to call
  Error writeError_ GUARDED_BY(mutex_);
  Error readError_ GUARDED_BY(mutex_);
  bool scheduled_ GUARDED_BY(mutex_) = false;
  bool scheduledQuietly_ GUARDED_BY(mutex_) = false;
  bool writing_ GUARDED_BY(mutex_) = false; // a thread is in stream_->write(), without the mutex
  bool settlesLater_ GUARDED_BY(mutex_) = false; // settle() has to run once writing_ is false
  bool noRoom_ GUARDED_BY(mutex_) = false; // the stream did not take all of the last write
  bool closed_ GUARDED_BY(mutex_) = false;
};

} // namespace torchwire
