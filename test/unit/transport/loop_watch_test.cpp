#include "backend/transport/loop_watch.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "backend/transport/handshake_socket.h"
#include "backend/transport/socket_address.h"
#include "test/unit/support/callback_ledger.h"
#include "test/unit/support/on_loop.h"
#include "test/unit/support/open_files.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr milliseconds kTick{1}; // libuv counts in whole milliseconds

// Two connected sockets that do not block.
struct Sockets {
  Sockets() {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    ours = Descriptor(ends[0]);
    theirs = Descriptor(ends[1]);
  }
  Descriptor ours, theirs;
};

void say(const Descriptor& socket, const std::string& text) {
  REQUIRE(
      send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
      static_cast<ssize_t>(text.size()));
}

void drain(const Descriptor& socket) {
  char bytes[256];
  while (recv(socket.get(), bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
  }
}

void keepBusy(milliseconds time) {
  const auto begin = Clock::now();
  while (Clock::now() - begin < time) {
  }
}

} // namespace

// ---- timers ---------------------------------------------------------------------------------------

TEST_CASE("a loop's timer is due once, and not before its time", "[loop_watch]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  const milliseconds after = GENERATE(milliseconds(0), milliseconds(1), milliseconds(20));
  OnLoop<LoopTimer> timer(loop);
  CallbackNote& note = ledger.note("the timer");
  Clock::time_point due;
  const auto begin = Clock::now();
  timer([&](LoopTimer& bound) {
    bound.start(after, [&] {
      due = Clock::now();
      note.add(Error());
    });
  });
  REQUIRE(ledger.waitForAll());
  CHECK(due - begin >= after - kTick);
}

TEST_CASE(
    "a loop's timer counts from its start, however long the task took before", "[loop_watch]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  OnLoop<LoopTimer> timer(loop);
  CallbackNote& note = ledger.note("the timer");
  Clock::time_point begin, due;
  timer([&](LoopTimer& bound) {
    keepBusy(milliseconds(30));
    begin = Clock::now();
    bound.start(milliseconds(20), [&] {
      due = Clock::now();
      note.add(Error());
    });
  });
  REQUIRE(ledger.waitForAll());
  CHECK(due - begin >= milliseconds(20) - kTick);
}

TEST_CASE("a loop's timers are due in the order of their times", "[loop_watch]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  OnLoop<LoopTimer> late(loop), early(loop);
  std::vector<int> order;
  onLoop(*loop, [&] {});
  CallbackNote& first = ledger.note("the early timer");
  CallbackNote& second = ledger.note("the late timer");
  late([&](LoopTimer& bound) {
    bound.start(milliseconds(20), [&] {
      order.push_back(2);
      second.add(Error());
    });
  });
  early([&](LoopTimer& bound) {
    bound.start(milliseconds(1), [&] {
      order.push_back(1);
      first.add(Error());
    });
  });
  REQUIRE(ledger.waitForAll());
  CHECK(order == std::vector<int>{1, 2});
}

TEST_CASE(
    "a timer that was stopped, started anew or destroyed forgets its earlier start",
    "[loop_watch]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  std::atomic<bool> forgotten{true};
  const auto held = std::make_shared<int>(0);
  const auto tooEarly = [&forgotten, held] { forgotten = false; };
  OnLoop<LoopTimer> stopped(loop), restarted(loop), destroyed(loop), witness(loop);
  onLoop(*loop, [&] {}); // all of the following in one turn of the loop
  stopped([&](LoopTimer& bound) {
    bound.start(milliseconds(1), tooEarly);
    bound.stop();
    bound.stop();
  });
  restarted([&](LoopTimer& bound) {
    bound.start(milliseconds(1), tooEarly);
    bound.start(milliseconds(10), [sent = ledger.expect("the later start")] { sent(Error()); });
  });
  destroyed([&](LoopTimer& bound) {
    bound.start(milliseconds(1), tooEarly);
    destroyed.destroy();
  });
  witness([&](LoopTimer& bound) {
    bound.start(milliseconds(10), [sent = ledger.expect("the witness")] { sent(Error()); });
  });
  REQUIRE(ledger.waitForAll());
  onLoop(*loop, [] {});
  CHECK(forgotten);
  CHECK(held.use_count() == 2); // the test's own, and tooEarly's
}

TEST_CASE("a timer may be destroyed, stopped or started anew when it is due", "[loop_watch]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  OnLoop<LoopTimer> destroyed(loop), stopped(loop), again(loop);
  destroyed([&](LoopTimer& bound) {
    bound.start(milliseconds(1), [&, sent = ledger.expect("the one that is destroyed")] {
      destroyed.destroy();
      sent(Error());
    });
  });
  stopped([&](LoopTimer& bound) {
    bound.start(milliseconds(1), [&, sent = ledger.expect("the one that is stopped")] {
      bound.stop();
      sent(Error());
    });
  });
  again([&](LoopTimer& bound) {
    bound.start(milliseconds(1), [&, sent = ledger.expect("the second start")] {
      bound.start(milliseconds(1), [sent] { sent(Error()); });
    });
  });
  CHECK(ledger.waitForAll());
}

TEST_CASE("a timer may destroy another that is due at the same time", "[loop_watch]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  CallbackNote& note = ledger.note("one of the two timers");
  std::array<std::unique_ptr<LoopTimer>, 2> timers;
  onLoop(*loop, [&] {
    for (size_t i = 0; i < timers.size(); ++i) {
      timers[i] = std::make_unique<LoopTimer>(*loop);
      timers[i]->start(milliseconds(1), [&, i] {
        timers[1 - i].reset();
        note.add(Error());
      });
    }
    keepBusy(milliseconds(3));
  });
  REQUIRE(ledger.waitForAll());
  onLoop(*loop, [&] { timers = {}; });
}

// ---- descriptors ----------------------------------------------------------------------------------

TEST_CASE("a watch calls while there is something to read", "[loop_watch]") {
  const auto loop = Loop::start("test");
  const Sockets sockets;
  Notifier notifier;
  std::atomic<int> calls{0};
  OnLoop<FdWatch> watch(loop, sockets.ours.get(), [&] {
    ++calls;
    notifier.notify();
  });
  watch([](FdWatch& bound) { bound.want(FdWatch::readable); });
  onLoop(*loop, [] {});
  CHECK(calls == 0);
  say(sockets.theirs, "x");
  CHECK(notifier.waitUntil([&] { return calls >= 3; })); // as nobody reads it
  const int after = watch([&](FdWatch&) {
    drain(sockets.ours);
    return calls.load();
  });
  for (int i = 0; i < 10; ++i) {
    onLoop(*loop, [] {});
  }
  CHECK(calls == after);
}

TEST_CASE("a watch that wants nothing does not call", "[loop_watch]") {
  const auto loop = Loop::start("test");
  const Sockets sockets;
  std::atomic<int> calls{0};
  Notifier notifier;
  OnLoop<FdWatch> watch(loop, sockets.ours.get(), [&] {
    ++calls;
    notifier.notify();
  });
  say(sockets.theirs, "x");
  onLoop(*loop, [] {});
  CHECK(calls == 0);
  watch([](FdWatch& bound) { bound.want(FdWatch::readable); });
  REQUIRE(notifier.waitUntil([&] { return calls > 0; }));
  const int after = watch([&](FdWatch& bound) {
    bound.want(0);
    return calls.load();
  });
  for (int i = 0; i < 10; ++i) {
    onLoop(*loop, [] {});
  }
  CHECK(calls == after);
}

TEST_CASE("a watch that wants to write calls once there is room", "[loop_watch]") {
  const auto loop = Loop::start("test");
  const Sockets sockets;
  const std::string text(4096, 'x');
  while (send(sockets.ours.get(), text.data(), text.size(), MSG_DONTWAIT) > 0) {
  }
  CallbackLedger ledger;
  std::atomic<int> calls{0};
  CallbackNote& note = ledger.note("the watch");
  OnLoop<FdWatch> watch(loop, sockets.ours.get(), [&] {
    if (calls++ == 0) {
      note.add(Error());
    }
  });
  watch([](FdWatch& bound) { bound.want(FdWatch::writable); });
  onLoop(*loop, [] {});
  CHECK(calls == 0);
  drain(sockets.theirs);
  CHECK(ledger.waitForAll());
}

TEST_CASE(
    "a watch may be destroyed by its own call, and the descriptor stays open", "[loop_watch]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  const Sockets sockets;
  const auto before = openFiles();
  {
    CallbackNote& note = ledger.note("the watch");
    std::unique_ptr<FdWatch> watch;
    const auto held = std::make_shared<int>(7);
    onLoop(*loop, [&] {
      watch = std::make_unique<FdWatch>(*loop, sockets.ours.get(), [&, held] {
        watch.reset();
        note.add(*held == 7 ? Error() : Error(ErrorCode::badFrame, "what it held has gone"));
      });
      watch->want(FdWatch::readable);
    });
    say(sockets.theirs, "x");
    CHECK(ledger.waitForAll());
    CHECK_FALSE(note.error());
  }
  onLoop(*loop, [] {});
  CHECK(openFiles() == before);
  CHECK(fcntl(sockets.ours.get(), F_GETFD) >= 0);
}

TEST_CASE("a watch may destroy another that is ready at the same time", "[loop_watch]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  const Sockets first, second;
  CallbackNote& note = ledger.note("one of the two watches");
  std::array<std::unique_ptr<FdWatch>, 2> watches;
  onLoop(*loop, [&] {
    const int sockets[] = {first.ours.get(), second.ours.get()};
    for (size_t i = 0; i < watches.size(); ++i) {
      watches[i] = std::make_unique<FdWatch>(*loop, sockets[i], [&, i] {
        watches[1 - i].reset();
        watches[i]->want(0);
        note.add(Error());
      });
      watches[i]->want(FdWatch::readable);
    }
    say(first.theirs, "x");
    say(second.theirs, "x");
  });
  CHECK(ledger.waitForAll());
  onLoop(*loop, [&] { watches = {}; });
}

TEST_CASE(
    "a descriptor may be watched anew at once, also another under the same number",
    "[loop_watch]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  auto sockets = std::make_unique<Sockets>();
  auto watch = onLoop(*loop, [&] {
    auto old = std::make_unique<FdWatch>(*loop, sockets->ours.get(), [] {});
    old->want(FdWatch::readable);
    return old;
  });
  const Sockets next;
  CallbackNote& note = ledger.note("the new watch");
  onLoop(*loop, [&] {
    const int number = sockets->ours.get();
    watch.reset();
    watch = std::make_unique<FdWatch>(*loop, number, [] {});
    watch->want(FdWatch::readable | FdWatch::writable);
    watch.reset();
    dup2(next.ours.get(), number); // closes the old socket
    watch = std::make_unique<FdWatch>(*loop, number, [&] {
      watch->want(0);
      note.add(Error());
    });
    watch->want(FdWatch::readable);
  });
  say(next.theirs, "x");
  CHECK(ledger.waitForAll());
  onLoop(*loop, [&] { watch.reset(); });
}

TEST_CASE("what cannot be watched is an error", "[loop_watch]") {
  const auto loop = Loop::start("test");
  const Descriptor file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const Sockets sockets;
  const auto objection = [&](int descriptor) {
    return onLoop(*loop, [&] {
      try {
        FdWatch watch(*loop, descriptor, [] {});
        return std::string();
      } catch (const std::runtime_error& e) {
        return std::string(e.what());
      }
    });
  };
  CHECK_THAT(objection(file.get()), Catch::StartsWith("libuv cannot watch a file: "));
  CHECK_THAT(objection(-1), Catch::StartsWith("libuv cannot watch a file: "));
  CHECK(objection(sockets.ours.get()).empty());
}

TEST_CASE(
    "a watch calls until the end of a peer that broke the connection has been seen",
    "[loop_watch]") {
  // The system reports such a socket as readable and broken at once, before its bytes have been read.
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  Sockets sockets;
  say(sockets.ours, "never read: that is what breaks the connection");
  say(sockets.theirs, "abc");
  sockets.theirs = Descriptor();
  CallbackNote& note = ledger.note("the end");
  std::string read;
  std::unique_ptr<FdWatch> watch;
  onLoop(*loop, [&] {
    watch = std::make_unique<FdWatch>(*loop, sockets.ours.get(), [&] {
      char byte = 0;
      if (recv(sockets.ours.get(), &byte, 1, 0) > 0) {
        read += byte;
      } else {
        watch.reset();
        note.add(Error());
      }
    });
    watch->want(FdWatch::readable);
  });
  CHECK(ledger.notifier().waitUntil([&] { return note.called(); }, std::chrono::seconds(3)));
  CHECK(onLoop(*loop, [&] { return read; }) == "abc");
  onLoop(*loop, [&] { watch.reset(); });
}
