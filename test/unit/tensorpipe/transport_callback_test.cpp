// When and where callbacks run, and what may be done in them.
#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <thread>

#include "test/unit/support/transport_under_test.h"

using namespace torchwire;

namespace {

/// Tells whether callbacks come inside the calls that took them. Calls are made under a lock that
/// the callbacks take too, as careless users do.
class InlineWatch {
 public:
  template <typename Call>
  void during(Call call) {
    std::lock_guard<std::mutex> lock(mutex_);
    caller_ = std::this_thread::get_id();
    call();
    caller_ = std::thread::id();
  }

  std::function<void(const TpError&)> watch(CallbackNote& note) {
    return [this, &note](const TpError& error) {
      if (caller_ == std::this_thread::get_id()) {
        cameInside_ = true;
      } else {
        std::lock_guard<std::mutex> lock(mutex_);
      }
      noting(note)(error);
    };
  }
  TpConnection::read_callback_fn watchRead(CallbackNote& note) {
    return [watched = watch(note)](const TpError& error, const void*, size_t) { watched(error); };
  }
  TpListener::accept_callback_fn watchAccept(CallbackNote& note) {
    return [watched = watch(note)](const TpError& error, std::shared_ptr<TpConnection>) {
      watched(error);
    };
  }

  bool cameInside() const {
    return cameInside_;
  }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> caller_{};
  std::atomic<bool> cameInside_{false};
};

void readAndWrite(InlineWatch& watch, CallbackLedger& ledger, TpConnection& connection) {
  static const std::string kText = "text";
  CallbackNote& read = ledger.note("read");
  CallbackNote& written = ledger.note("write");
  watch.during([&] { connection.read(watch.watchRead(read)); });
  watch.during([&] { connection.write(kText.data(), kText.size(), watch.watch(written)); });
}

} // namespace

TEST_CASE("callbacks of good news do not come inside the calls", "[transport_callback]") {
  InlineWatch watch;
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  for (int i = 0; i < 200; ++i) {
    readAndWrite(watch, transport.ledger, *dialer.connection());
    readAndWrite(watch, transport.ledger, *accepter.connection());
  }
  REQUIRE(transport.settle());
  CHECK_FALSE(watch.cameInside());
}

TEST_CASE("a read of what has come already does not call back inside", "[transport_callback]") {
  InlineWatch watch;
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  for (int i = 0; i < 50; ++i) {
    dialer.write("first");
    dialer.write("second");
    const auto first = accepter.read(); // with it, the second has most likely come too
    REQUIRE(transport.settle());
    CallbackNote& second = transport.ledger.note("read");
    watch.during([&, &end = accepter] { end.connection()->read(watch.watchRead(second)); });
    REQUIRE(transport.settle());
  }
  CHECK_FALSE(watch.cameInside());
}

TEST_CASE("callbacks of errors do not come inside the calls", "[transport_callback]") {
  InlineWatch watch;
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  CallbackLedger& ledger = transport.ledger;
  CallbackNote& accepted = ledger.note("accept");
  CallbackNote& late = ledger.note("accept after the close");
  TpListener& listener = transport.listener();
  watch.during([&] { listener.accept(watch.watchAccept(accepted)); });
  readAndWrite(watch, ledger, *dialer.connection());
  watch.during([&end = dialer] { end.close(); });
  readAndWrite(watch, ledger, *dialer.connection());
  watch.during([&] { listener.close(); });
  watch.during([&] { listener.accept(watch.watchAccept(late)); });
  CallbackNote& read = ledger.note("read");
  accepter.connection()->read(watch.watchRead(read));
  watch.during([&end = accepter] { end.drop(); });
  REQUIRE(transport.settle());
  CHECK_FALSE(watch.cameInside());
}

TEST_CASE("callbacks do not come inside one another", "[transport_callback]") {
  std::atomic<int> depth{0};
  std::atomic<int> deepest{0};
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  std::vector<std::string> messages(300, "message");
  dialer.writeAll(messages);

  CallbackNote& all = transport.ledger.note("reads from inside callbacks");
  std::function<void(int)> readNext = [&, connection = accepter.connection()](int left) {
    connection->read([&, left](const TpError& error, const void*, size_t) {
      deepest = std::max(deepest.load(), ++depth);
      if (left == 1 || error) {
        noting(all)(error);
      } else {
        readNext(left - 1);
      }
      --depth;
    });
  };
  readNext(300);
  REQUIRE(transport.settle());
  transport.server().join(); // the last callback has returned
  CHECK(all.succeeded());
  CHECK(deepest == 1);
}

TEST_CASE("a callback can start reads, writes and dials", "[transport_callback]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const std::string address = transport.listener().addr();
  const auto returned = dialer.read();
  CallbackNote& finished = transport.ledger.note("read that answers and dials");
  std::shared_ptr<TpConnection> dialed;
  accepter.connection()->read([&, connection = accepter.connection()](
                                  const TpError& error, const void* data, size_t length) {
    TransportEnd(transport.ledger, "accepter", connection)
        .write(std::string(static_cast<const char*>(data), length));
    dialed = transport.server().connect(address);
    TransportEnd(transport.ledger, "second dialer", dialed).write("hello");
    noting(finished)(error);
  });
  const auto second = transport.accept();
  dialer.write("echo this");
  REQUIRE(transport.settle());
  CHECK(returned->brought("echo this"));
  const auto hello = second->read();
  REQUIRE(transport.settle());
  CHECK(hello->brought("hello"));
}

TEST_CASE("a callback can ask for the listener's address and accept more", "[transport_callback]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  TpListener& listener = transport.listener();
  const std::string address = listener.addr();
  CallbackNote& asked = transport.ledger.note("accept that asks");
  CallbackNote& second = transport.ledger.note("second accept");
  std::string seen;
  listener.accept([&](const TpError& error, std::shared_ptr<TpConnection>) {
    seen = listener.addr();
    transport.accept(second, listener);
    noting(asked)(error);
  });
  TransportEnd first = transport.dial();
  TransportEnd next = transport.dial();
  first.write("hello");
  next.write("hello");
  REQUIRE(transport.settle());
  CHECK(seen == address);
  CHECK(second.succeeded());
}

TEST_CASE("a connection can be destroyed in its own callbacks", "[transport_callback]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  CallbackNote& destroyed = transport.ledger.note("callback that destroys");
  auto connection = accepter.connection();
  accepter.drop();
  TpConnection* const raw = connection.get(); // the callback owns the connection alone
  SECTION("a read") {
    dialer.write("the end");
    raw->read([&destroyed, connection = std::move(connection)](
                  const TpError& error, const void*, size_t) mutable {
      connection.reset();
      noting(destroyed)(error);
    });
  }
  SECTION("a read with others behind it") {
    CallbackNote& behind = transport.ledger.note("read behind it");
    raw->read([&destroyed, connection = std::move(connection)](
                  const TpError& error, const void*, size_t) mutable {
      connection.reset();
      noting(destroyed)(error);
    });
    raw->read([&behind](const TpError& error, const void*, size_t) { noting(behind)(error); });
    dialer.write("the end");
  }
  SECTION("a write") {
    static const std::string kText = "the end";
    dialer.read();
    raw->write(
        kText.data(), kText.size(),
        [&destroyed, connection = std::move(connection)](const TpError& error) mutable {
          connection.reset();
          noting(destroyed)(error);
        });
  }
  SECTION("an error") {
    dialer.close();
    raw->read([&destroyed, connection = std::move(connection)](
                  const TpError& error, const void*, size_t) mutable {
      connection.reset();
      noting(destroyed)(error);
    });
  }
  REQUIRE(transport.settle());
}

TEST_CASE("a listener can be destroyed in its own callbacks", "[transport_callback]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto listener = transport.listen();
  TpListener* const raw = listener.get();
  CallbackNote& destroyed = transport.ledger.note("accept that destroys");
  TransportEnd dialer = transport.dial(raw->addr());
  dialer.write("hello");
  std::shared_ptr<TpConnection> accepted;
  raw->accept([&, listener = std::move(listener)](
                  const TpError& error, std::shared_ptr<TpConnection> connection) mutable {
    listener.reset();
    accepted = std::move(connection);
    noting(destroyed)(error);
  });
  REQUIRE(transport.settle());
  TransportEnd accepter(transport.ledger, "accepter", accepted);
  const auto reading = accepter.read();
  REQUIRE(transport.settle());
  CHECK(reading->brought("hello"));
}

TEST_CASE("a context can be closed in a callback", "[transport_callback]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const auto other = dialer.read();
  CallbackNote& closed = transport.ledger.note("read that closes the context");
  accepter.connection()->read([&](const TpError& error, const void*, size_t) {
    transport.server().close();
    noting(closed)(error);
  });
  const auto behind = accepter.read();
  dialer.write("the end");
  REQUIRE(transport.settle());
  CHECK(closed.succeeded());
  CHECK(behind->failed());
  CHECK(other->failed());
}

TEST_CASE("callbacks are let go once they were called", "[transport_callback]") {
  const auto token = std::make_shared<int>();
  {
    TransportUnderTest transport(GENERATE(from_range(transportKinds())));
    auto [dialer, accepter] = transport.connect();
    auto readWithToken = [&, held = token](TransportEnd& end) {
      CallbackNote& note = transport.ledger.note("read");
      end.connection()->read(
          [&note, held, connection = end.connection()](const TpError& error, const void*, size_t) {
            noting(note)(error);
          });
    };
    readWithToken(accepter);
    dialer.write("hello");
    REQUIRE(transport.settle());
    readWithToken(accepter); // left pending: it owns the connection that owns it
    readWithToken(dialer);
    transport.server().join();
    transport.client().join();
  }
  CHECK(token.use_count() == 1);
}
