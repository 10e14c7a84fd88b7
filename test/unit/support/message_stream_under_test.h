// A message stream over a wire in memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/transport/message_stream.h"
#include "test/unit/support/callback_ledger.h"
#include "test/unit/support/memory_stream.h"
#include "test/unit/support/on_loop.h"

namespace torchwire {

/// One message stream, at end 0 of a wire; at end 1 there is a second, or the test itself. What is asked of
/// it is expected to be called back once, on the loop, not inside the call. Closed at its end.
class MessageStreamUnderTest {
 public:
  MessageStreamUnderTest(std::shared_ptr<Loop> loop, std::shared_ptr<MemoryWire> wire, int end = 0);
  ~MessageStreamUnderTest();
  MessageStreamUnderTest(const MessageStreamUnderTest&) = delete;
  MessageStreamUnderTest& operator=(const MessageStreamUnderTest&) = delete;

  /// Lets it talk over the wire.
  void start();

  /// What came of a read.
  struct Read {
    explicit Read(CallbackNote& itsNote) : note(itsNote) {}
    CallbackNote& note;
    std::string message; // once note.called()
  };
  using ReadPtr = std::shared_ptr<Read>;

  CallbackNote& write(const std::string& message);
  /// From memory that is kept until the callback.
  CallbackNote& writeFromMemory(const std::string& message);
  ReadPtr readMessage();
  ReadPtr readInto(size_t length);
  CallbackNote& expectFirstMessage();

  bool waitForAll() {
    return ledger.waitForAll();
  }
  bool waitForEnd() {
    return end_.waitForAll();
  }
  bool waitFor(const CallbackNote& note) {
    return ledger.notifier().waitUntil([&] { return note.called(); });
  }
  /// The order in which callbacks came.
  std::vector<std::string> order() const EXCLUDES(mutex_);
  /// Callbacks that came on another thread than the loop's, or inside the call that took one.
  int misplaced() const EXCLUDES(mutex_);
  /// Callbacks that came after the end: only of what was asked for after it.
  int late() const EXCLUDES(mutex_);

  MessageStream& operator*() {
    return *stream_;
  }
  MessageStream* operator->() {
    return stream_.get();
  }
  const std::shared_ptr<MessageStream>& get() const {
    return stream_;
  }

  const std::shared_ptr<Loop> loop;
  const std::shared_ptr<MemoryWire> wire;
  CallbackLedger ledger;

 private:
  CallbackLedger end_;

 public:
  CallbackNote& ended;

 private:
  template <typename Ask>
  void ask(Ask ask);
  void called(CallbackNote& note, const Error& error) EXCLUDES(mutex_);

  const int atEnd_;
  std::shared_ptr<MessageStream> stream_;
  bool asking_ = false; // the loop's: inside a call
  mutable Mutex mutex_{LockRank::testOuter};
  std::vector<std::string> order_ GUARDED_BY(mutex_);
  int misplaced_ GUARDED_BY(mutex_) = 0;
  int late_ GUARDED_BY(mutex_) = 0;
};

/// A message as it travels.
std::string onTheWire(const std::string& message);
/// The header of one of that length.
std::string headerOf(uint64_t length);

} // namespace torchwire
