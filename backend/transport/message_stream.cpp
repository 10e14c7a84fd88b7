#include "backend/transport/message_stream.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <new>
#include <utility>

#include "backend/base/guarded.h"

namespace torchwire {
namespace {

static_assert(
    std::endian::native == std::endian::little, "lengths travel as little-endian numbers");

// How long one connection may keep the loop before the others have their turn.
constexpr int kRounds = 16;
constexpr size_t kBytesPerTurn = size_t{4} << 20;
constexpr size_t kWritesAtOnce = WriteBatch::kMost; // so that one that is full goes out at once
// A larger message waits for nothing, nor does what was written before it: meanwhile the reader makes room.
constexpr size_t kSmallMessage = size_t{16} << 10;

const char* const kStalled =
    "a message on the connection has begun and did not go on: its length was changed on the way, "
    "a part of it was left out, or the network or the peer has stalled";

Error broken(std::string sentence) {
  return Error(ErrorCode::linkBroken, std::move(sentence));
}

Progress writeTo(Stream& stream, const iovec* parts, size_t count) {
  try {
    return stream.write(parts, count);
  } catch (const std::exception& e) { // for want of memory
    return {0, e.what()};
  }
}

} // namespace

MessageStream::MessageStream(std::shared_ptr<Loop> loop, std::function<void()> ended)
    : loop_(std::move(loop)), ended_(std::move(ended)) {}

// ---- asked for, on any thread ---------------------------------------------------------------------

void MessageStream::write(const void* data, size_t length, Written written) {
  push(WriteOp{length, data, length, {}, std::move(written)});
}

void MessageStream::write(std::vector<char> message, Written written) {
  const size_t length = message.size();
  const char* data = message.data(); // stays when the vector moves
  push(WriteOp{length, data, length, std::move(message), std::move(written)});
}

void MessageStream::readInto(void* into, size_t length, Read read) {
  push(ReadOp{into, length, false, false, std::move(read)});
}

void MessageStream::readMessage(Read read) {
  push(ReadOp{nullptr, kMaxAllocation, true, false, std::move(read)});
}

void MessageStream::expectFirstMessage(Written there) {
  push(
      ReadOp{
          nullptr, kMaxFirstMessage, true, true,
          [this, there = std::move(there)](const Error& error, const char* data, size_t length) {
            if (!error) {
              firstMessage_.emplace(data, data + length);
            }
            there(error);
          }});
}

/// Small writes go out at once, from here. On the loop several may follow, which then go out together.
void MessageStream::push(WriteOp op) {
  if (WriteBatch* batch = currentBatch()) {
    if (op.length < kSmallMessage) {
      keepBack(std::move(op), *batch);
      return;
    }
    batch->flush();
  }
  {
    MutexLock lock(mutex_);
    writes_.push_back(std::move(op));
    if (writes_.size() != 1 || loop_->isLoopThread()) {
      schedule();
      return;
    }
  }
  flush();
}

WriteBatch* MessageStream::currentBatch() const {
  return loop_->isLoopThread() ? nullptr : WriteBatch::current();
}

void MessageStream::keepBack(WriteOp op, WriteBatch& batch) {
  batch.add(shared_from_this());
  {
    MutexLock lock(mutex_);
    writes_.push_back(std::move(op));
  }
  if (batch.isFull()) {
    batch.flush();
  }
}

void MessageStream::flush() {
  pumpWrites();
  MutexLock lock(mutex_);
  const bool isOut = writes_.empty() && !writeError_; // what is left is to say so
  schedule(isOut ? Urgency::quiet : Urgency::now);
}

void MessageStream::push(ReadOp op) {
  MutexLock lock(mutex_);
  reads_.push_back(std::move(op));
  if (!(loop_->isLoopThread() &&
        advancing_)) { // advance() goes on until there is nothing left to read
    schedule();
  }
}

void MessageStream::close() {
  if (WriteBatch* batch = currentBatch()) {
    batch->flush(); // what was written before goes out, as it would have without a batch
  }
  MutexLock lock(mutex_);
  if (closed_) {
    return;
  }
  closed_ = true;
  for (Error* error : {&writeError_, &readError_}) {
    if (!*error) {
      *error = Error(ErrorCode::shutDown, "the connection was closed");
    }
  }
  schedule();
}

void MessageStream::schedule(Urgency urgency) {
  bool& scheduled = urgency == Urgency::now ? scheduled_ : scheduledQuietly_;
  if (scheduled_ || scheduled) {
    return;
  }
  scheduled = true;
  Task turn([self = shared_from_this(), urgency] {
    {
      MutexLock lock(self->mutex_);
      (urgency == Urgency::now ? self->scheduled_ : self->scheduledQuietly_) = false;
    }
    self->advance();
  });
  if (urgency == Urgency::now) {
    loop_->post(std::move(turn));
  } else {
    loop_->postQuietly(std::move(turn));
  }
}

// ---- writing --------------------------------------------------------------------------------------

/// write() may encrypt, so it runs without the lock and the loop can read meanwhile. settle() keeps the writes and the
/// stream until it has returned.
void MessageStream::pumpWrites() {
  MutexLock lock(mutex_);
  if (writing_) {
    return; // that thread goes on
  }
  writing_ = true;
  bool goesOn = true;
  while (goesOn && !writes_.empty() && stream_ && !writeError_) {
    iovec parts[2 * kWritesAtOnce];
    size_t wanted = 0;
    const size_t count = gather(parts, wanted);
    Stream& stream = *stream_;
    lock.unlock();
    const Progress progress = writeTo(stream, parts, count);
    lock.lock();
    advanceWrites(progress.bytes);
    noRoom_ = progress.bytes < wanted;
    if (!progress.error.empty() && !writeError_) {
      writeError_ = broken(progress.error);
    }
    goesOn = !noRoom_;
  }
  writing_ = false;
  if (std::exchange(settlesLater_, false)) {
    schedule();
  }
}

size_t MessageStream::gather(iovec* parts, size_t& bytes) const {
  size_t count = 0;
  const auto add = [&](const void* data, size_t length) {
    if (length != 0) {
      parts[count++] = {const_cast<void*>(data), length}; // NOLINT: iovec knows no const
      bytes += length;
    }
  };
  const size_t ops = std::min(writes_.size(), kWritesAtOnce);
  for (size_t i = 0; i < ops; ++i) {
    const WriteOp& op = writes_[i];
    const size_t headerSent = std::min(op.sent, sizeof op.header);
    const size_t dataSent = op.sent - headerSent;
    add(reinterpret_cast<const char*>(&op.header) + headerSent, sizeof op.header - headerSent);
    add(static_cast<const char*>(op.data) + dataSent, op.length - dataSent);
  }
  return count;
}

void MessageStream::advanceWrites(size_t bytes) {
  while (!writes_.empty()) {
    WriteOp& op = writes_.front();
    const size_t left = sizeof op.header + op.length - op.sent;
    op.sent += std::min(left, bytes);
    if (bytes < left) {
      return;
    }
    bytes -= left;
    done_.emplace_back([written = std::move(op.written)] { written(Error()); });
    writes_.pop_front();
  }
}

// ---- reading, on the loop -------------------------------------------------------------------------

void MessageStream::pumpReads() {
  while (const ReadOp* op = nextRead()) {
    if (firstMessage_) {
      serveFirstMessage(*op);
    } else if (reading_ == nullptr || !readHeader(*op) || !readBody(*op)) {
      return;
    } else {
      const bool readAhead = op->readAhead;
      finishRead(op->allocate ? allocated_.data() : static_cast<const char*>(op->into));
      if (readAhead) {
        return; // its callback keeps the message for the next read
      }
    }
  }
}

MessageStream::ReadOp* MessageStream::nextRead() {
  MutexLock lock(mutex_);
  return reads_.empty() || readError_ ? nullptr : &reads_.front();
}

bool MessageStream::readHeader(const ReadOp& op) {
  if (headerRead_ == sizeof header_) {
    return true;
  }
  if (!receive(&header_, sizeof header_, headerRead_)) {
    return false;
  }
  if (op.allocate ? header_ > op.length : header_ != op.length) {
    breakReads(broken(
        "the peer sent a message of " + std::to_string(header_) + " bytes where " +
        (op.allocate ? "at most " : "") + std::to_string(op.length) + " were expected"));
    return false;
  }
  if (op.allocate) {
    try {
      allocated_.resize(header_);
    } catch (const std::bad_alloc&) {
      breakReads(broken("no memory for a message of " + std::to_string(header_) + " bytes"));
      return false;
    }
  }
  return true;
}

bool MessageStream::readBody(const ReadOp& op) {
  return receive(op.allocate ? allocated_.data() : op.into, header_, bodyRead_);
}

/// Whether all that was wanted is there.
bool MessageStream::receive(void* into, size_t wanted, size_t& got) {
  while (got < wanted) {
    if (readThisTurn_ >= kBytesPerTurn) {
      return false;
    }
    const Progress progress = reading_->read(static_cast<char*>(into) + got, wanted - got);
    got += progress.bytes;
    readThisTurn_ += progress.bytes;
    arrived_ += progress.bytes;
    if (!progress.error.empty()) {
      breakReads(broken(progress.error));
      return false;
    }
    if (progress.bytes == 0) {
      return false;
    }
  }
  return true;
}

void MessageStream::serveFirstMessage(const ReadOp& op) {
  allocated_ = std::move(*firstMessage_);
  firstMessage_.reset();
  if (!op.allocate && allocated_.size() != op.length) {
    breakReads(broken(
        "the peer's first message has " + std::to_string(allocated_.size()) + " bytes where " +
        std::to_string(op.length) + " were expected"));
    return;
  }
  if (!op.allocate) {
    std::copy(allocated_.begin(), allocated_.end(), static_cast<char*>(op.into));
  }
  header_ = allocated_.size();
  finishRead(op.allocate ? allocated_.data() : static_cast<const char*>(op.into));
}

void MessageStream::finishRead(const char* data) {
  MutexLock lock(mutex_);
  done_.emplace_back([read = std::move(reads_.front().read), kept = std::move(allocated_), data,
                      length = static_cast<size_t>(header_)] { read(Error(), data, length); });
  reads_.pop_front();
  allocated_.clear();
  headerRead_ = bodyRead_ = 0;
}

/// Nothing more comes, so that to write is of no use either.
void MessageStream::breakReads(const Error& error) {
  MutexLock lock(mutex_);
  readError_ = readError_ ? readError_ : error;
  writeError_ = writeError_ ? writeError_ : error;
}

// ---- the loop's turn ------------------------------------------------------------------------------

void MessageStream::start(std::unique_ptr<Stream> stream) {
  loop_->expectOnLoop();
  {
    MutexLock lock(mutex_);
    if (readError_) {
      return; // closed meanwhile
    }
    stream_ = std::move(stream);
    reading_ = stream_.get();
  }
  try {
    reading_->start([this] { advance(); });
    if (const auto patience = reading_->stallPatience(); patience.count() != 0) {
      stall_.emplace(*loop_, patience, [this] { fail(broken(kStalled)); });
    }
  } catch (const std::exception& e) {
    breakReads(broken(e.what()));
  }
  advance();
}

void MessageStream::fail(const Error& error) {
  loop_->expectOnLoop();
  breakReads(error);
  if (!advancing_) { // else a callback says so, and the others that are due come first
    advance();
  }
}

void MessageStream::advance() {
  loop_->expectOnLoop();
  const auto self = shared_from_this();
  advancing_ = true;
  readThisTurn_ = 0;
  // Once, before anything is called back: what callbacks write is scheduled instead, so that writes on
  // several connections go out in the order in which they were asked for.
  pumpWrites();
  bool more = true;
  for (int round = 0; more && round < kRounds && readThisTurn_ < kBytesPerTurn; ++round) {
    pumpReads();
    settle();
    more = callBack();
  }
  advancing_ = false;
  if (more || readThisTurn_ >= kBytesPerTurn) {
    MutexLock lock(mutex_);
    schedule();
  }
}

/// Fails what cannot be served any more, and tells the stream what is waited for.
void MessageStream::settle() {
  std::unique_ptr<Stream> useless;
  MutexLock lock(mutex_);
  watchForStall();
  if (writing_) { // whoever writes asks for room afterwards
    settlesLater_ = settlesLater_ || writeError_ || readError_;
    if (reading_ != nullptr) {
      reading_->setInterest(!reads_.empty(), false);
    }
    return;
  }
  if (writeError_) {
    for (WriteOp& op : writes_) {
      done_.emplace_back(
          [written = std::move(op.written), error = writeError_] { written(error); });
    }
    writes_.clear();
  }
  if (readError_) {
    for (ReadOp& op : reads_) {
      done_.emplace_back(
          [read = std::move(op.read), error = readError_] { read(error, nullptr, 0); });
    }
    reads_.clear();
    reading_ = nullptr;
    stall_.reset();
    useless = std::move(stream_);
  }
  if (reading_ != nullptr) {
    reading_->setInterest(!reads_.empty(), noRoom_ && !writes_.empty());
  }
}

void MessageStream::watchForStall() {
  if (stall_) {
    const size_t heldBack = reading_->heldBack();
    stall_->observe(!reads_.empty() && (headerRead_ != 0 || heldBack != 0), arrived_ + heldBack);
  }
}

/// Whether there was something to call; if not, and all is over, says so.
bool MessageStream::callBack() {
  std::vector<Task> done;
  std::function<void()> ended;
  {
    MutexLock lock(mutex_);
    done.swap(done_);
    if (done.empty() && closed_ && !stream_ && reads_.empty() && writes_.empty()) {
      ended.swap(ended_);
    }
  }
  for (Task& callback : done) {
    guarded("a callback of a connection", callback);
    callback = Task(); // what it holds goes before the next is called
  }
  if (ended) {
    ended();
  }
  return !done.empty();
}

} // namespace torchwire
