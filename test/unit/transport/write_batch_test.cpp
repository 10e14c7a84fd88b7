#include "backend/transport/write_batch.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/unit/support/forwarding_stream.h"
#include "test/unit/support/message_stream_under_test.h"
#include "test/unit/support/on_loop.h"

using namespace torchwire;

namespace {

/// Notes what each write has taken.
class NotingStream final : public ForwardingStream {
 public:
  NotingStream(std::unique_ptr<Stream> inner, std::vector<size_t>& written)
      : ForwardingStream(std::move(inner)), written_(written) {}

  Progress write(const iovec* parts, size_t count) override {
    const Progress progress = ForwardingStream::write(parts, count);
    written_.push_back(progress.bytes);
    return progress;
  }

 private:
  std::vector<size_t>& written_;
};

struct Talk {
  Talk() {
    onLoop(*loop, [&] {
      end->start(std::make_unique<NotingStream>(wire->stream(*loop, 0), written));
    });
  }
  std::string out() {
    CHECK(end.waitForAll());
    return wire->take(1);
  }
  bool isSilent() {
    return wire->take(1).empty();
  }

  const std::shared_ptr<Loop> loop = Loop::start("test");
  const std::shared_ptr<MemoryWire> wire = MemoryWire::make(size_t{1} << 20, 0);
  std::vector<size_t> written; // bytes
  MessageStreamUnderTest end{loop, wire};
};

} // namespace

TEST_CASE("small messages of a batch go out in one write at its end", "[write_batch]") {
  Talk talk;
  {
    const WriteBatch batch;
    talk.end.write("one");
    talk.end.write("two");
    CHECK(talk.isSilent());
  }
  const std::string all = onTheWire("one") + onTheWire("two");
  CHECK(talk.out() == all);
  CHECK(talk.written == std::vector{all.size()});
}

TEST_CASE("a batch in another ends with that", "[write_batch]") {
  Talk talk;
  {
    const WriteBatch outer;
    {
      const WriteBatch inner;
      talk.end.write("one");
    }
    talk.end.write("two");
    CHECK(talk.isSilent());
  }
  CHECK(talk.out() == onTheWire("one") + onTheWire("two"));
  CHECK(talk.written.size() == 1);
}

TEST_CASE("a large message of a batch goes out at once, behind the small ones", "[write_batch]") {
  Talk talk, other;
  const std::string large(20'000, 'x');
  const WriteBatch batch;
  other.end.write("of another connection");
  talk.end.write("small");
  talk.end.write(large);
  CHECK(other.out() == onTheWire("of another connection"));
  CHECK(talk.out() == onTheWire("small") + onTheWire(large));
  CHECK(talk.written == std::vector{onTheWire("small").size(), onTheWire(large).size()});
}

TEST_CASE("a batch may be of several connections", "[write_batch]") {
  Talk one, other;
  {
    const WriteBatch batch;
    one.end.write("1");
    other.end.write("2");
    one.end.write("3");
  }
  CHECK(one.out() == onTheWire("1") + onTheWire("3"));
  CHECK(other.out() == onTheWire("2"));
}

TEST_CASE("a batch does not keep many messages back", "[write_batch]") {
  Talk talk;
  std::string all;
  const WriteBatch batch;
  for (const char* text : {"1", "2", "3", "4", "5", "6", "7", "8"}) {
    talk.end.write(text);
    all += onTheWire(text);
  }
  CHECK(talk.out() == all);
  CHECK(talk.written == std::vector{all.size()});
  talk.end.write("9");
  CHECK(talk.isSilent());
}

TEST_CASE("what a batch keeps back goes out before its connection closes", "[write_batch]") {
  Talk talk;
  const WriteBatch batch;
  talk.end.write("goodbye");
  talk.end->close();
  CHECK(talk.out() == onTheWire("goodbye"));
}

TEST_CASE("what a batch keeps back fails with its connection", "[write_batch]") {
  Talk talk;
  const CallbackNote* note = nullptr;
  {
    const WriteBatch batch;
    note = &talk.end.write("one");
    onLoop(*talk.loop, [&] { talk.end->close(); });
    CHECK(talk.end.waitForAll());
  }
  CHECK(note->error());
  CHECK(talk.isSilent());
}
