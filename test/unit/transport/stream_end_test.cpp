// The end of a peer, as the two kinds of streams see it.
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "backend/transport/ring.h"
#include "backend/transport/shm_stream.h"
#include "backend/transport/tcp_stream.h"
#include "test/unit/support/acceptor_under_test.h"
#include "test/unit/support/callback_ledger.h"
#include "test/unit/support/on_loop.h"
#include "test/unit/support/open_files.h"

using namespace torchwire;

namespace {

constexpr AckWatch::Patience kNoKeepAlive{};

const std::string kEnded = "the peer closed the connection (its process may have ended)";

/// Reads a stream to its end, in small pieces.
class Reader {
 public:
  Reader(std::shared_ptr<Loop> loop, const std::function<std::unique_ptr<Stream>()>& make)
      : loop_(std::move(loop)) {
    onLoop(*loop_, [&] {
      stream_ = make();
      stream_->start([this] { read(); });
      stream_->setInterest(true, false);
      read(); // as a message stream does
    });
  }
  ~Reader() {
    onLoop(*loop_, [this] { stream_.reset(); });
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// What came before the end, and the end's sentence.
  std::string toTheEnd() {
    ledger_.waitForAll();
    return onLoop(*loop_, [this] { return text_ + ", then: " + end_.error().message(); });
  }

 private:
  void read() {
    char piece[3];
    while (!end_.called()) {
      const Progress progress = stream_->read(piece, sizeof piece);
      text_.append(piece, progress.bytes);
      if (!progress.error.empty()) {
        stream_->setInterest(false, false);
        end_.add(Error(ErrorCode::linkBroken, progress.error));
      } else if (progress.bytes == 0) {
        return;
      }
    }
  }

  const std::shared_ptr<Loop> loop_;
  CallbackLedger ledger_;
  CallbackNote& end_ = ledger_.note("the end of the stream");
  std::unique_ptr<Stream> stream_;
  std::string text_;
};

/// The two ends of a connection, made as Connector and Acceptor make it.
struct Connection {
  explicit Connection(Medium medium) : listening(listenSomewhere(medium)) {
    const SocketAddress address = SocketAddress::ofSocket(listening.get());
    dialed = Descriptor(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(connect(dialed.get(), address.get(), address.size()) == 0);
    SocketAddress from;
    accepted = Descriptor(from.accept(listening.get()));
    REQUIRE(accepted.get() >= 0);
  }
  Descriptor listening, dialed, accepted;
};

void say(const Descriptor& socket, const std::string& text) {
  REQUIRE(
      send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
      static_cast<ssize_t>(text.size()));
}

} // namespace

TEST_CASE("a TCP stream is read to its end, however the peer went", "[stream_end]") {
  const auto loop = Loop::start("test");
  Connection connection(Medium::tcp);
  const bool reset = GENERATE(false, true);
  const bool beforeTheStart = GENERATE(true, false);
  if (reset) {
    say(connection.accepted, "never read: so that the peer's end is a reset");
    char byte = 0;
    REQUIRE(recv(connection.dialed.get(), &byte, 1, MSG_PEEK) == 1);
  }
  const auto part = [&] {
    say(connection.dialed, "the last words");
    connection.dialed = Descriptor();
  };
  if (beforeTheStart) {
    part();
  }
  Reader reader(loop, [&] {
    return std::make_unique<TcpStream>(
        *loop, connection.accepted.take(), kNoKeepAlive, std::make_shared<AddressWatch>(*loop));
  });
  if (!beforeTheStart) {
    part();
  }
  CHECK(
      reader.toTheEnd() ==
      "the last words, then: " + (reset ? "Connection reset by peer" : kEnded));
}

TEST_CASE("a stream of shared memory is read to its end, however the peer went", "[stream_end]") {
  const auto loop = Loop::start("test");
  const size_t size = ShmStream::memorySize();
  Connection connection(Medium::shm);
  MemoryFile memory = MemoryFile::create(size);
  auto peer = onLoop(*loop, [&] {
    return std::make_unique<ShmStream>(
        *loop, connection.dialed.take(), MemoryFile::adopt(dup(memory.descriptor()), size), true);
  });
  const bool withWakeups = GENERATE(false, true);
  if (withWakeups) { // on their way in both directions as the peer goes
    say(connection.accepted, "!!!");
  }
  const std::string words = "the last words";
  const iovec part{const_cast<char*>(words.data()), words.size()};
  CHECK(peer->write(&part, 1).bytes == words.size());
  const auto leave = [&] { onLoop(*loop, [&] { peer.reset(); }); };
  const bool beforeTheStart = GENERATE(true, false);
  if (beforeTheStart) {
    leave();
  }
  {
    Reader reader(loop, [&] {
      return std::make_unique<ShmStream>(
          *loop, connection.accepted.take(), std::move(memory), false);
    });
    if (!beforeTheStart) {
      leave();
    }
    CHECK(reader.toTheEnd() == words + ", then: " + kEnded);
  }
}

TEST_CASE("wakeups of a peer that has gone do not hide its end", "[stream_end]") {
  // The system tells of them and of the end at once.
  const auto loop = Loop::start("test");
  Connection connection(Medium::shm);
  say(connection.accepted, "!"); // never read: so that the peer's end is a reset
  say(connection.dialed, std::string(1000, '!')); // more than are looked at in one go
  connection.dialed = Descriptor();
  Reader reader(loop, [&] {
    return std::make_unique<ShmStream>(
        *loop, connection.accepted.take(), MemoryFile::create(ShmStream::memorySize()), false);
  });
  CHECK(reader.toTheEnd() == ", then: " + kEnded);
}

TEST_CASE("indices that make no sense are the end of a stream of shared memory", "[stream_end]") {
  const auto loop = Loop::start("test");
  const Connection connection(Medium::shm);
  const size_t size = ShmStream::memorySize();
  MemoryFile memory = MemoryFile::create(size);
  const MemoryFile theirs = MemoryFile::adopt(dup(memory.descriptor()), size);
  Reader reader(loop, [&] {
    return std::make_unique<ShmStream>(
        *loop, dup(connection.accepted.get()), std::move(memory), false);
  });
  // The accepting side reads the first ring.
  reinterpret_cast<RingHeader*>(theirs.data())->written = UINT64_MAX;
  say(connection.dialed, "!");
  CHECK(reader.toTheEnd() == ", then: the peer broke the shared memory's indices");
}

TEST_CASE("streams leave no files behind", "[stream_end]") {
  const auto loop = Loop::start("test");
  const auto before = openFiles();
  for (int i = 0; i < 10; ++i) {
    Connection tcp(Medium::tcp), local(Medium::shm);
    onLoop(*loop, [&] {
      TcpStream started(
          *loop, tcp.dialed.take(), kNoKeepAlive, std::make_shared<AddressWatch>(*loop));
      TcpStream never(
          *loop, tcp.accepted.take(), kNoKeepAlive, std::make_shared<AddressWatch>(*loop));
      started.start([] {});
      const auto memory = [] { return MemoryFile::create(ShmStream::memorySize()); };
      ShmStream first(*loop, local.dialed.take(), memory(), true);
      ShmStream second(*loop, local.accepted.take(), memory(), false);
      first.start([] {});
    });
  }
  CHECK(openFiles() == before);
}

TEST_CASE("how long a message may stall over TCP", "[stream_end]") {
  using std::chrono::milliseconds;
  struct Case {
    milliseconds interval, whileLost, patience;
  };
  const Case one = GENERATE(
      Case{milliseconds(10000), milliseconds(1800), milliseconds(5000)},
      Case{milliseconds(2000), milliseconds(1800), milliseconds(1800)},
      Case{milliseconds(10000), milliseconds(0), milliseconds(20000)}, // without sessions
      Case{milliseconds(0), milliseconds(1800), milliseconds(0)}, // for ever
      Case{milliseconds(0), milliseconds(0), milliseconds(0)});
  Connection connection(Medium::tcp);
  const auto loop = Loop::start("test");
  onLoop(*loop, [&] {
    const TcpStream stream(
        *loop, connection.dialed.take(), AckWatch::Patience{one.interval, one.whileLost},
        std::make_shared<AddressWatch>(*loop));
    CHECK(stream.stallPatience() == one.patience);
  });
}
