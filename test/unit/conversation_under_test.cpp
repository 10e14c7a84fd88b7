#include "test/unit/conversation_under_test.h"

#include <utility>

namespace torchwire {

ConversationUnderTest::ConversationUnderTest(
    std::shared_ptr<Loop> theLoop, std::shared_ptr<MemoryWire> theWire, int end)
    : loop(std::move(theLoop)),
      wire(std::move(theWire)),
      ended(end_.note("the end of the conversation")),
      atEnd_(end),
      conversation_(std::make_shared<Conversation>(loop, [this] { ended.add(Error()); })) {}

ConversationUnderTest::~ConversationUnderTest() {
  conversation_->close();
  ledger.waitForAll();
  end_.waitForAll();
  onLoop(*loop, [this] { conversation_.reset(); });
}

void ConversationUnderTest::start() {
  onLoop(*loop, [this] { conversation_->start(wire->stream(*loop, atEnd_)); });
}

template <typename Ask>
void ConversationUnderTest::ask(Ask ask) {
  if (!loop->isLoopThread()) {
    ask();
    return;
  }
  const bool before = std::exchange(asking_, true);
  ask();
  asking_ = before;
}

void ConversationUnderTest::called(CallbackNote& note, const Error& error) {
  {
    MutexLock lock(mutex_);
    order_.push_back(note.what());
    misplaced_ += !loop->isLoopThread() || asking_ ? 1 : 0;
    late_ += ended.called() ? 1 : 0;
  }
  note.add(error);
}

CallbackNote& ConversationUnderTest::write(const std::string& message) {
  CallbackNote& note = ledger.note("write of " + std::to_string(message.size()) + " bytes");
  ask([&] {
    conversation_->write(
        std::vector<char>(message.begin(), message.end()),
        [this, &note](const Error& error) { called(note, error); });
  });
  return note;
}

CallbackNote& ConversationUnderTest::writeFromMemory(const std::string& message) {
  CallbackNote& note = ledger.note("write of " + std::to_string(message.size()) + " bytes");
  const auto kept = std::make_shared<const std::string>(message);
  ask([&] {
    conversation_->write(kept->data(), kept->size(), [this, &note, kept](const Error& error) {
      called(note, error);
    });
  });
  return note;
}

ConversationUnderTest::ReadPtr ConversationUnderTest::readMessage() {
  auto read = std::make_shared<Read>(ledger.note("read"));
  ask([&] {
    conversation_->readMessage([this, read](const Error& error, const char* data, size_t length) {
      if (length != 0) {
        read->message.assign(data, length);
      }
      called(read->note, error);
    });
  });
  return read;
}

ConversationUnderTest::ReadPtr ConversationUnderTest::readInto(size_t length) {
  auto read = std::make_shared<Read>(ledger.note("read"));
  const auto into =
      std::make_shared<std::vector<char>>(length); // as long as asked: for AddressSanitizer
  ask([&] {
    conversation_->readInto(
        into->data(), length, [this, read, into](const Error& error, const char*, size_t) {
          read->message.assign(into->begin(), into->end());
          called(read->note, error);
        });
  });
  return read;
}

CallbackNote& ConversationUnderTest::expectFirstMessage() {
  CallbackNote& note = ledger.note("the first message");
  onLoop(*loop, [&] {
    conversation_->expectFirstMessage([this, &note](const Error& error) { called(note, error); });
  });
  return note;
}

std::vector<std::string> ConversationUnderTest::order() const {
  MutexLock lock(mutex_);
  return order_;
}

int ConversationUnderTest::misplaced() const {
  MutexLock lock(mutex_);
  return misplaced_;
}

int ConversationUnderTest::late() const {
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
