#include "test/unit/support/memory_stream.h"

#include <algorithm>
#include <utility>

namespace torchwire {
namespace {

const char kLeft[] = "the other end has left";

} // namespace

/// The stream at one end.
class MemoryWire::End final : public Stream {
 public:
  End(std::shared_ptr<MemoryWire> wire, int end, std::shared_ptr<Seat> seat)
      : wire_(std::move(wire)), end_(end), seat_(std::move(seat)) {
    seat_->stream = this;
  }
  ~End() override {
    seat_->stream = nullptr;
    wire_->leave(end_);
  }

  void start(std::function<void()> ready) override {
    ready_ = std::move(ready);
  }
  void setInterest(bool reading, bool writing) override {
    wire_->setInterest(end_, reading, writing);
  }
  Progress write(const iovec* parts, size_t count) override {
    return wire_->write(end_, parts, count);
  }
  Progress read(void* into, size_t length) override {
    return wire_->read(end_, static_cast<char*>(into), length);
  }
  void callReady() {
    if (ready_) {
      ready_();
    }
  }

 private:
  const std::shared_ptr<MemoryWire> wire_;
  const int end_;
  const std::shared_ptr<Seat> seat_;
  std::function<void()> ready_;
};

std::shared_ptr<MemoryWire> MemoryWire::make(size_t capacity, unsigned seed) {
  return std::shared_ptr<MemoryWire>(new MemoryWire(capacity, seed));
}

std::unique_ptr<Stream> MemoryWire::stream(Loop& loop, int end) {
  auto seat = std::make_shared<Seat>();
  {
    MutexLock lock(mutex_);
    sides_[end].loop = &loop;
    sides_[end].seat = seat;
  }
  return std::make_unique<End>(shared_from_this(), end, std::move(seat));
}

void MemoryWire::put(int end, const std::string& bytes) {
  MutexLock lock(mutex_);
  std::deque<char>& incoming = sides_[1 - end].incoming;
  incoming.insert(incoming.end(), bytes.begin(), bytes.end());
  callIfReady(1 - end);
}

std::string MemoryWire::take(int end) {
  MutexLock lock(mutex_);
  std::deque<char>& incoming = sides_[end].incoming;
  std::string bytes(incoming.begin(), incoming.end());
  incoming.clear();
  callIfReady(1 - end);
  return bytes;
}

void MemoryWire::leave(int end) {
  MutexLock lock(mutex_);
  sides_[end].left = true;
  callIfReady(1 - end);
}

bool MemoryWire::hasLeft(int end) const {
  MutexLock lock(mutex_);
  return sides_[end].left;
}

Progress MemoryWire::write(int end, const iovec* parts, size_t count) {
  MutexLock lock(mutex_);
  if (sides_[1 - end].left) {
    return {0, kLeft};
  }
  size_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    total += parts[i].iov_len;
  }
  const size_t taken = somePartOf(std::min(total, roomFrom(end)));
  std::deque<char>& incoming = sides_[1 - end].incoming;
  size_t left = taken;
  for (size_t i = 0; left > 0; ++i) {
    const size_t part = std::min(left, parts[i].iov_len);
    const char* data = static_cast<const char*>(parts[i].iov_base);
    incoming.insert(incoming.end(), data, data + part);
    left -= part;
  }
  callIfReady(1 - end);
  return {taken, {}};
}

Progress MemoryWire::read(int end, char* into, size_t length) {
  MutexLock lock(mutex_);
  std::deque<char>& incoming = sides_[end].incoming;
  const size_t given = somePartOf(std::min(length, incoming.size()));
  const auto last = incoming.begin() + static_cast<ptrdiff_t>(given);
  std::copy(incoming.begin(), last, into);
  incoming.erase(incoming.begin(), last);
  callIfReady(1 - end);
  return {given, given == 0 && sides_[1 - end].left ? kLeft : ""};
}

void MemoryWire::setInterest(int end, bool reading, bool writing) {
  MutexLock lock(mutex_);
  sides_[end].seat->reading = reading;
  sides_[end].seat->writing = writing;
  callIfReady(end);
}

bool MemoryWire::isReady(int end) const {
  const Side& side = sides_[end];
  const bool over = sides_[1 - end].left;
  return side.seat &&
      ((side.seat->reading && (over || !side.incoming.empty())) ||
       (side.seat->writing && (over || roomFrom(end) > 0)));
}

size_t MemoryWire::roomFrom(int end) const {
  const size_t used = sides_[1 - end].incoming.size();
  return used >= capacity_ ? 0 : capacity_ - used;
}

size_t MemoryWire::somePartOf(size_t most) {
  return most == 0 || isWhole_ ? most : 1 + random_() % most;
}

void MemoryWire::callIfReady(int end) {
  if (!isReady(end)) {
    return;
  }
  sides_[end].loop->post([self = shared_from_this(), seat = sides_[end].seat, end] {
    bool ready = false;
    {
      MutexLock lock(self->mutex_);
      ready = self->isReady(end);
    }
    if (ready && seat->stream != nullptr) {
      seat->stream->callReady();
    }
  });
}

} // namespace torchwire
