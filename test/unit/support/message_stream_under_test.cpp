#include "test/unit/support/message_stream_under_test.h"

#include <utility>

namespace torchwire {

MessageStreamUnderTest::MessageStreamUnderTest(
    std::shared_ptr<Loop> theLoop, std::shared_ptr<MemoryWire> theWire, int end)
    : loop(std::move(theLoop)),
      wire(std::move(theWire)),
      ended(end_.note("the end of the message stream")),
      atEnd_(end),
      stream_(std::make_shared<MessageStream>(loop, [this] { ended.add(Error()); })) {}

MessageStreamUnderTest::~MessageStreamUnderTest() {
  stream_->close();
  ledger.waitForAll();
  end_.waitForAll();
  onLoop(*loop, [this] { stream_.reset(); });
}

void MessageStreamUnderTest::start() {
  onLoop(*loop, [this] { stream_->start(wire->stream(*loop, atEnd_)); });
}

template <typename Ask>
void MessageStreamUnderTest::ask(Ask ask) {
  if (!loop->isLoopThread()) {
    ask();
    return;
  }
  const bool before = std::exchange(asking_, true);
  ask();
  asking_ = before;
}

void MessageStreamUnderTest::called(CallbackNote& note, const Error& error) {
  {
    MutexLock lock(mutex_);
    order_.push_back(note.what());
    misplaced_ += !loop->isLoopThread() || asking_ ? 1 : 0;
    late_ += ended.called() ? 1 : 0;
  }
  note.add(error);
}

CallbackNote& MessageStreamUnderTest::write(const std::string& message) {
  CallbackNote& note = ledger.note("write of " + std::to_string(message.size()) + " bytes");
  ask([&] {
    stream_->write(
        std::vector<char>(message.begin(), message.end()),
        [this, &note](const Error& error) { called(note, error); });
  });
  return note;
}

CallbackNote& MessageStreamUnderTest::writeFromMemory(const std::string& message) {
  CallbackNote& note = ledger.note("write of " + std::to_string(message.size()) + " bytes");
  const auto kept = std::make_shared<const std::string>(message);
  ask([&] {
    stream_->write(kept->data(), kept->size(), [this, &note, kept](const Error& error) {
      called(note, error);
    });
  });
  return note;
}

MessageStreamUnderTest::ReadPtr MessageStreamUnderTest::readMessage() {
  auto read = std::make_shared<Read>(ledger.note("read"));
  ask([&] {
    stream_->readMessage([this, read](const Error& error, const char* data, size_t length) {
      if (length != 0) {
        read->message.assign(data, length);
      }
      called(read->note, error);
    });
  });
  return read;
}

MessageStreamUnderTest::ReadPtr MessageStreamUnderTest::readInto(size_t length) {
  auto read = std::make_shared<Read>(ledger.note("read"));
  const auto into =
      std::make_shared<std::vector<char>>(length); // as long as asked: for AddressSanitizer
  ask([&] {
    stream_->readInto(
        into->data(), length, [this, read, into](const Error& error, const char*, size_t) {
          read->message.assign(into->begin(), into->end());
          called(read->note, error);
        });
  });
  return read;
}

CallbackNote& MessageStreamUnderTest::expectFirstMessage() {
  CallbackNote& note = ledger.note("the first message");
  onLoop(*loop, [&] {
    stream_->expectFirstMessage([this, &note](const Error& error) { called(note, error); });
  });
  return note;
}

std::vector<std::string> MessageStreamUnderTest::order() const {
  MutexLock lock(mutex_);
  return order_;
}

int MessageStreamUnderTest::misplaced() const {
  MutexLock lock(mutex_);
  return misplaced_;
}

int MessageStreamUnderTest::late() const {
  MutexLock lock(mutex_);
  return late_;
}

std::string headerOf(uint64_t length) {
  std::string header;
  for (int i = 0; i < 8; ++i) {
    header += static_cast<char>(length >> (8 * i));
  }
  return header;
}

std::string onTheWire(const std::string& message) {
  return headerOf(message.size()) + message;
}

} // namespace torchwire
