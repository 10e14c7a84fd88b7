// A ring of which the other end does what it likes: with its index, with the flags, with the bytes.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "backend/transport/ring.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

constexpr int kMaxSteps = 100;
constexpr unsigned kMaxCapacityBits = 17; // more than is copied in one step
constexpr size_t kMaxLength = size_t{2} << kMaxCapacityBits;

/// The bytes are a heap block of just their size, so that the sanitizer sees the first one too many.
class Ring {
 public:
  explicit Ring(size_t capacity)
      : header_(std::make_unique<RingHeader>()),
        bytes_(std::make_unique<char[]>(capacity)),
        capacity_(capacity) {}

  RingMemory memory() {
    return {header_.get(), bytes_.get(), capacity_};
  }
  RingHeader& header() {
    return *header_;
  }
  char* bytes() {
    return bytes_.get();
  }
  size_t capacity() const {
    return capacity_;
  }

 private:
  const std::unique_ptr<RingHeader> header_;
  const std::unique_ptr<char[]> bytes_;
  const size_t capacity_;
};

/// Bytes of a stream, from a place in it. The stream repeats itself, but never after a round of the ring.
std::vector<char> bytesFrom(uint64_t index, size_t length) {
  constexpr size_t kPeriod = 65537;
  static const std::vector<char> stream = [] {
    std::vector<char> bytes(kPeriod + kMaxLength);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>((i % kPeriod * 2654435761U) >> 24);
    }
    return bytes;
  }();
  const auto from = stream.begin() + static_cast<ptrdiff_t>(index % kPeriod);
  return {from, from + static_cast<ptrdiff_t>(length)};
}

size_t chooseLength(Script& script, size_t capacity) {
  return script.ConsumeIntegralInRange<size_t>(0, script.ConsumeBool() ? 16 : 2 * capacity);
}

// ---- an honest peer ----------------------------------------------------------------------------------

/// Both ends by turns: what goes in comes out, in order and no more than that.
class HonestPair {
 public:
  explicit HonestPair(Ring& ring) : ring_(ring), writer_(ring.memory()), reader_(ring.memory()) {}

  void step(Script& script) {
    script.ConsumeBool() ? write(script) : read(script);
    rest();
  }

 private:
  void write(Script& script) {
    const size_t length = chooseLength(script, ring_.capacity());
    const std::vector<char> data = bytesFrom(written_, length);
    const size_t room = ring_.capacity() - static_cast<size_t>(written_ - read_);
    const std::optional<size_t> done = writer_.write(data.data(), length);
    require(done == std::min(length, room), "a write takes what there is room for");
    written_ += *done;
    wakes(writer_.takeReaderWakeup(), readerSleeps_);
  }

  void read(Script& script) {
    const size_t length = chooseLength(script, ring_.capacity());
    std::vector<char> into(length);
    const size_t there = static_cast<size_t>(written_ - read_);
    const std::optional<size_t> done = reader_.read(into.data(), length);
    require(done == std::min(length, there), "a read gives what there is");
    into.resize(*done);
    require(into == bytesFrom(read_, *done), "bytes come out as they went in");
    read_ += *done;
    wakes(reader_.takeWriterWakeup(), writerSleeps_);
  }

  /// Whoever has nothing to do goes to sleep.
  void rest() {
    require(
        reader_.isReady() == (written_ != read_), "the reader knows whether there is something");
    require(
        writer_.isReady() == (written_ - read_ != ring_.capacity()),
        "the writer knows whether there is room");
    readerSleeps_ = reader_.requestWakeup();
    require(readerSleeps_ == (written_ == read_), "the reader sleeps when there is nothing");
    writerSleeps_ = writer_.requestWakeup();
    require(
        writerSleeps_ == (written_ - read_ == ring_.capacity()),
        "the writer sleeps when all is full");
  }

  /// One who sleeps is woken; one wakeup too many does no harm.
  static void wakes(bool wakeup, bool& sleeps) {
    require(wakeup || !sleeps, "a side that sleeps gets its wakeup");
    sleeps = false;
  }

  Ring& ring_;
  RingWriter writer_;
  RingReader reader_;
  uint64_t written_ = 0, read_ = 0;
  bool readerSleeps_ = false, writerSleeps_ = false;
};

// ---- a hostile peer ----------------------------------------------------------------------------------

/// Writes anything into what both sides see.
void meddle(Script& script, Ring& ring) {
  RingHeader& header = ring.header();
  const auto index = [&](std::atomic<uint64_t>& field) {
    // Near to what it was, which is where nonsense is hard to tell, or far off.
    const uint64_t old = field.load();
    field = script.ConsumeBool()
        ? script.ConsumeIntegral<uint64_t>()
        : old + script.ConsumeIntegralInRange<uint64_t>(0, 3 * ring.capacity()) - ring.capacity();
  };
  switch (script.ConsumeIntegralInRange(0, 4)) {
    case 0:
      return index(header.written);
    case 1:
      return index(header.consumed);
    case 2:
      header.readerSleeps = script.ConsumeIntegral<uint32_t>();
      return;
    case 3:
      header.writerSleeps = script.ConsumeIntegral<uint32_t>();
      return;
    default: {
      const std::vector<char> bytes =
          script.ConsumeBytes<char>(std::min<size_t>(ring.capacity(), 8));
      const size_t at = script.ConsumeIntegralInRange<size_t>(0, ring.capacity() - bytes.size());
      std::copy(bytes.begin(), bytes.end(), ring.bytes() + at);
    }
  }
}

/// What `length` bytes from a place in the stream are, whatever they are.
std::vector<char> look(Ring& ring, uint64_t index, size_t length) {
  const size_t start = static_cast<size_t>(index % ring.capacity());
  const size_t straight = std::min(length, ring.capacity() - start);
  std::vector<char> bytes(ring.bytes() + start, ring.bytes() + start + straight);
  bytes.insert(bytes.end(), ring.bytes(), ring.bytes() + (length - straight));
  return bytes;
}

/// An operation on the ring moves as far as the other side's index allows, or finds that it makes no sense.
std::optional<size_t> expected(uint64_t possible, size_t capacity, size_t length) {
  if (length != 0 && possible > capacity) {
    return std::nullopt;
  }
  return std::min(length, static_cast<size_t>(possible));
}

class BesiegedWriter {
 public:
  explicit BesiegedWriter(Ring& ring) : ring_(ring), writer_(ring.memory()) {}

  void step(Script& script) {
    const size_t length = chooseLength(script, ring_.capacity());
    const std::vector<char> data = bytesFrom(written_, length);
    const uint64_t used = written_ - ring_.header().consumed;
    const uint64_t room = used > ring_.capacity() ? UINT64_MAX : ring_.capacity() - used;
    const std::vector<char> beyond =
        look(ring_, written_ + length, ring_.capacity() - std::min(length, ring_.capacity()));

    const std::optional<size_t> done = writer_.write(data.data(), length);
    require(done == expected(room, ring_.capacity(), length), "a write believes no nonsense");
    require(
        look(ring_, written_, done.value_or(0)) == bytesFrom(written_, done.value_or(0)),
        "what was written is there");
    require(look(ring_, written_ + length, beyond.size()) == beyond, "nothing else was written");
    written_ += done.value_or(0);
    require(
        done.value_or(0) == 0 || ring_.header().written == written_,
        "the reader is told how much there is");
    writer_.isReady();
    writer_.requestWakeup();
    const bool asked = ring_.header().readerSleeps != 0;
    require(writer_.takeReaderWakeup() == asked, "the wakeup is for who asked for it");
    require(!writer_.takeReaderWakeup(), "one wakeup is enough");
  }

 private:
  Ring& ring_;
  RingWriter writer_;
  uint64_t written_ = 0;
};

class BesiegedReader {
 public:
  explicit BesiegedReader(Ring& ring) : ring_(ring), reader_(ring.memory()) {}

  void step(Script& script) {
    const size_t length = chooseLength(script, ring_.capacity());
    const uint64_t there = ring_.header().written - read_;
    std::vector<char> into(length);
    const std::optional<size_t> done = reader_.read(into.data(), length);
    require(done == expected(there, ring_.capacity(), length), "a read believes no nonsense");
    into.resize(done.value_or(0));
    require(into == look(ring_, read_, into.size()), "what is in the ring comes out");
    read_ += into.size();
    require(
        into.empty() || ring_.header().consumed == read_,
        "the writer is told how much room there is");
    reader_.isReady();
    reader_.requestWakeup();
    const bool asked = ring_.header().writerSleeps != 0;
    require(reader_.takeWriterWakeup() == asked, "the wakeup is for who asked for it");
    require(!reader_.takeWriterWakeup(), "one wakeup is enough");
  }

 private:
  Ring& ring_;
  RingReader reader_;
  uint64_t read_ = 0;
};

// ---- a run -------------------------------------------------------------------------------------------

void runHonest(Script& script, Ring& ring) {
  HonestPair pair(ring);
  for (int i = 0; i < kMaxSteps && script.remaining_bytes() != 0; ++i) {
    pair.step(script);
  }
}

/// One process writes into one ring and reads from another; both from one here, which is more than a peer
/// can do.
void runBesieged(Script& script, Ring& ring) {
  BesiegedWriter writer(ring);
  BesiegedReader reader(ring);
  for (int i = 0; i < kMaxSteps && script.remaining_bytes() != 0; ++i) {
    while (script.ConsumeBool() && script.remaining_bytes() != 0) {
      meddle(script, ring);
    }
    script.ConsumeBool() ? writer.step(script) : reader.step(script);
  }
}

void run(Script script) {
  const bool isHonest = script.ConsumeBool();
  Ring ring(size_t{1} << script.ConsumeIntegralInRange(0U, kMaxCapacityBits));
  isHonest ? runHonest(script, ring) : runBesieged(script, ring);
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::run(torchwire::Script(data, size));
  return 0;
}
