// Messages over a stream that brings anything, in any pieces, and stops or breaks anywhere; while both ends
// read, write and close at any time, on the loop and beside it.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include "backend/transport/loop.h"
#include "backend/transport/message_stream.h"
#include "backend/transport/stream.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

constexpr int kMaxSteps = 64;
constexpr int kRest = 40; // turns of the loop, after which nothing is left to do
constexpr size_t kMaxLength = 300;

/// Lets the loop's thread have things done by the thread on which the fuzzer calls, and waits for them: so
/// the two take turns, and each run goes as the one before.
class Beside {
 public:
  /// On the loop.
  void run(std::function<void()> work) {
    work_ = std::move(work);
    asked_.release();
    done_.acquire();
  }
  void end() {
    work_ = nullptr;
    asked_.release();
  }
  /// On the other thread, until end().
  void serve() {
    for (asked_.acquire(); work_; asked_.acquire()) {
      work_();
      done_.release();
    }
  }

 private:
  std::binary_semaphore asked_{0}, done_{0};
  std::function<void()> work_;
};

/// What the stream carries, both ways. Outlives the stream.
struct Wire {
  std::vector<char> incoming; // all of it, since the beginning
  size_t taken = 0;
  size_t grain = SIZE_MAX; // no read gives more
  std::string readError; // after what came
  std::vector<char> outgoing;
  size_t room = 0;
  std::string writeError;
  std::function<void()> ready; // null: not started, or gone
  bool isRead = false, isWritten = false; // somebody waits for it

  bool isReady() const {
    return (isRead && (taken < incoming.size() || !readError.empty())) ||
        (isWritten && (room != 0 || !writeError.empty()));
  }
};

class ScriptedStream final : public Stream {
 public:
  explicit ScriptedStream(Wire& wire) : wire_(wire) {}
  ~ScriptedStream() override {
    wire_.ready = nullptr;
  }
  void start(std::function<void()> ready) override {
    wire_.ready = std::move(ready);
  }
  void setInterest(bool reading, bool writing) override {
    wire_.isRead = reading;
    wire_.isWritten = writing;
  }

  Progress write(const iovec* parts, size_t count) override {
    if (!wire_.writeError.empty()) {
      return {0, wire_.writeError};
    }
    size_t total = 0;
    for (size_t i = 0; i < count && wire_.room != 0; ++i) {
      const size_t length = std::min(parts[i].iov_len, wire_.room);
      const auto* from = static_cast<const char*>(parts[i].iov_base);
      wire_.outgoing.insert(wire_.outgoing.end(), from, from + length);
      wire_.room -= length;
      total += length;
    }
    return {total, {}};
  }

  Progress read(void* into, size_t length) override {
    const size_t given = std::min({length, wire_.grain, wire_.incoming.size() - wire_.taken});
    std::copy_n(wire_.incoming.data() + wire_.taken, given, static_cast<char*>(into));
    wire_.taken += given;
    return {given, given == 0 ? wire_.readError : std::string()};
  }

 private:
  Wire& wire_;
};

/// What was asked for, and what became of it.
class Ledger {
 public:
  /// To be called with the error by the callback.
  std::function<void(const Error&)> enter() {
    return [this, number = asked_++](const Error& error) {
      require(number == answered_, "callbacks come once and in order");
      require(error || !failed_, "after an error all fails");
      ++answered_;
      failed_ = failed_ || error;
    };
  }
  bool isSettled() const {
    return asked_ == answered_;
  }
  bool hasFailed() const {
    return failed_;
  }

 private:
  uint64_t asked_ = 0, answered_ = 0;
  bool failed_ = false;
};

class Game {
 public:
  Game(Script& script, std::shared_ptr<Loop> loop, Beside& beside)
      : script_(script),
        loop_(std::move(loop)),
        beside_(beside),
        stream_(std::make_shared<MessageStream>(loop_, [this] {
          require(closed_ && !ended_, "a message stream ends once, when it was closed");
          require(
              reads_.isSettled() && writes_.isSettled(), "the end comes after the last callback");
          ended_ = true;
        })) {}

  void play() {
    loop_->post([this] { begin(); });
    beside_.serve();
    stream_.reset();
  }

 private:
  // ---- steps, on the loop; in between it runs what the message stream has posted --------------------

  void begin() {
    if (script_.ConsumeBool()) {
      awaitsFirst_ = true;
      stream_->expectFirstMessage([this, note = reads_.enter()](const Error& error) {
        awaitsFirst_ = false;
        note(error);
        onCallback();
      });
    }
    next();
  }

  void next() {
    loop_->post([this] {
      if (steps_++ < kMaxSteps && script_.remaining_bytes() != 0) {
        step();
        next();
      } else {
        wire_.room = SIZE_MAX;
        wire_.grain = SIZE_MAX;
        rest(&Game::finish);
      }
    });
  }

  /// Lets the loop come to rest.
  void rest(void (Game::*then)(), int turns = kRest) {
    if (turns == 0) {
      (this->*then)();
      return;
    }
    callIfReady();
    loop_->post([this, then, turns] { rest(then, turns - 1); });
  }

  void finish() {
    checkNothingIsLeft();
    close();
    rest(&Game::over);
  }

  void over() {
    require(ended_, "a message stream that was closed ends");
    beside_.end();
  }

  void step() {
    switch (script_.ConsumeIntegralInRange(0, 11)) {
      case 0:
        return start();
      case 1:
      case 2:
        return bringMessage();
      case 3:
        return bringBytes();
      case 4:
        wire_.grain = script_.ConsumeIntegralInRange<size_t>(1, 32);
        return;
      case 5:
        wire_.room += script_.ConsumeIntegralInRange<size_t>(0, kMaxLength);
        return callIfReady();
      case 6:
        return breakStream();
      case 7:
        return call(); // once too often does no harm
      case 8:
        return fail();
      default:
        return onThisThreadOrBeside([this] { ask(); });
    }
  }

  void onThisThreadOrBeside(const std::function<void()>& work) {
    if (script_.ConsumeBool()) {
      beside_.run(work);
    } else {
      work();
    }
  }

  // ---- what the stream does ---------------------------------------------------------------------------

  void start() {
    if (!std::exchange(started_, true)) {
      stream_->start(std::make_unique<ScriptedStream>(wire_));
    }
  }

  void call() {
    if (const auto ready = wire_.ready) { // a copy: it may be destroyed meanwhile
      ready();
    }
  }
  void callIfReady() {
    if (wire_.isReady()) {
      call();
    }
  }

  void bringMessage() {
    const auto length = script_.ConsumeIntegralInRange<uint64_t>(0, kMaxLength);
    bring(&length, sizeof length);
    bringBody(length);
    callIfReady();
  }

  /// A length that need not be true, and other bytes.
  void bringBytes() {
    auto length = script_.ConsumeIntegral<uint64_t>();
    if (length > MessageStream::kMaxFirstMessage && length <= MessageStream::kMaxAllocation) {
      length %= 2 * MessageStream::kMaxFirstMessage; // memory takes time
    }
    bring(&length, script_.ConsumeIntegralInRange<size_t>(0, sizeof length));
    bringBody(script_.ConsumeIntegralInRange<size_t>(0, kMaxLength));
    callIfReady();
  }

  void bringBody(size_t length) {
    std::vector<char> body(length);
    for (char& byte : body) {
      byte = static_cast<char>(++pattern_ | 0x80); // part of a length, it is one that is refused
    }
    bring(body.data(), body.size());
  }

  void bring(const void* data, size_t length) {
    const auto* bytes = static_cast<const char*>(data);
    wire_.incoming.insert(wire_.incoming.end(), bytes, bytes + length);
  }

  void breakStream() {
    (script_.ConsumeBool() ? wire_.readError : wire_.writeError) = "broken";
    callIfReady();
  }

  void fail() {
    failed_ = true;
    stream_->fail(Error(ErrorCode::timeout, "failed"));
  }

  // ---- what is asked of the message stream ------------------------------------------------------------

  void ask() {
    asking_ = true;
    switch (script_.ConsumeIntegralInRange(0, 8)) {
      case 0:
        close();
        break;
      case 1:
      case 2:
        writeFrom();
        break;
      case 3:
        writeOwned();
        break;
      case 4:
      case 5:
        readInto();
        break;
      default:
        readMessage();
    }
    asking_ = false;
  }

  void close() {
    closed_ = true;
    stream_->close();
  }

  std::vector<char> makeMessage() {
    std::vector<char> message(
        script_.ConsumeIntegralInRange<size_t>(0, kMaxLength), static_cast<char>(++pattern_));
    const uint64_t length = message.size();
    const auto* header = reinterpret_cast<const char*>(&length);
    toSend_.insert(toSend_.end(), header, header + sizeof length);
    toSend_.insert(toSend_.end(), message.begin(), message.end());
    return message;
  }

  MessageStream::Written whenWritten() {
    return [this, note = writes_.enter(), end = toSend_.size()](const Error& error) {
      require(error || wire_.outgoing.size() >= end, "what is said to be written is");
      note(error);
      onCallback();
    };
  }

  void writeFrom() {
    auto message = std::make_shared<std::vector<char>>(makeMessage());
    const auto written = whenWritten();
    stream_->write(
        message->data(), message->size(), [message, written](const Error& error) mutable {
          message.reset(); // from now on nobody may read it
          written(error);
        });
  }

  void writeOwned() {
    std::vector<char> message = makeMessage();
    stream_->write(std::move(message), whenWritten());
  }

  void readInto() {
    const size_t length = script_.ConsumeIntegralInRange<size_t>(0, kMaxLength);
    auto memory = std::make_shared<std::vector<char>>(length);
    pendingReads_.push_back(length);
    stream_->readInto(
        memory->data(), length,
        [this, memory, note = reads_.enter()](
            const Error& error, const char* data, size_t got) mutable {
          require(error || data == memory->data(), "the bytes are where they were wanted");
          onRead(error, data, got);
          memory.reset(); // from now on nobody may write to it
          note(error);
          onCallback();
        });
  }

  void readMessage() {
    pendingReads_.push_back(SIZE_MAX);
    stream_->readMessage(
        [this, note = reads_.enter()](const Error& error, const char* data, size_t length) {
          onRead(error, data, length);
          note(error);
          onCallback();
        });
  }

  // ---- what comes of it -------------------------------------------------------------------------------

  void onCallback() {
    require(loop_->isLoopThread(), "callbacks come on the loop");
    require(!asking_, "callbacks do not come inside a call");
    if (steps_++ >= kMaxSteps || script_.remaining_bytes() == 0) {
      return;
    }
    switch (script_.ConsumeIntegralInRange(0, 4)) {
      case 0:
        return fail();
      case 1:
      case 2:
        return ask();
      default:
        return;
    }
  }

  void onRead(const Error& error, const char* data, size_t length) {
    const size_t wanted = pendingReads_.front();
    pendingReads_.pop_front();
    if (error) {
      return;
    }
    require(wanted == SIZE_MAX || wanted == length, "a message has the length that was asked for");
    require(
        nextIsComplete() && nextLength() == length, "a message has the length that came with it");
    const char* sent = wire_.incoming.data() + understood_ + sizeof(uint64_t);
    require(length == 0 || std::memcmp(data, sent, length) == 0, "bytes come as they were sent");
    understood_ += sizeof(uint64_t) + length;
  }

  uint64_t nextLength() const {
    uint64_t length = 0;
    std::memcpy(&length, wire_.incoming.data() + understood_, sizeof length);
    return length;
  }
  bool nextIsComplete() const {
    const size_t there = wire_.incoming.size() - understood_;
    return there >= sizeof(uint64_t) && nextLength() <= there - sizeof(uint64_t);
  }

  /// With nobody breaking anything, what can be done has been done.
  void checkNothingIsLeft() {
    require(
        wire_.outgoing.size() <= toSend_.size() &&
            std::equal(wire_.outgoing.begin(), wire_.outgoing.end(), toSend_.begin()),
        "what is sent is what was written, in order");
    const bool isFine = started_ && !closed_ && !failed_ && !reads_.hasFailed() &&
        !writes_.hasFailed() && wire_.readError.empty() && wire_.writeError.empty();
    if (isFine) {
      require(writes_.isSettled() && wire_.outgoing == toSend_, "what was written is sent");
      require(
          (pendingReads_.empty() && !awaitsFirst_) || !nextIsComplete(), "what has come is read");
    }
    require(
        !closed_ || (reads_.isSettled() && writes_.isSettled()),
        "nothing waits on what was closed");
  }

  Script& script_;
  const std::shared_ptr<Loop> loop_;
  Beside& beside_;
  Wire wire_;
  std::shared_ptr<MessageStream> stream_;
  Ledger reads_, writes_;
  std::deque<size_t> pendingReads_; // their lengths; SIZE_MAX: any
  std::vector<char> toSend_; // all of it, as it should be on the wire
  size_t understood_ = 0; // of what came in
  unsigned pattern_ = 0;
  int steps_ = 0;
  bool started_ = false, awaitsFirst_ = false, asking_ = false;
  bool closed_ = false, failed_ = false, ended_ = false;
};

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torchwire;
  static const std::shared_ptr<Loop> loop = Loop::start("fuzz");
  static Beside beside; // the loop may still be leaving it when a run is over
  Script script(data, size);
  Game(script, loop, beside).play();
  return 0;
}
