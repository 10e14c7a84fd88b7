#include "backend/tensorpipe_link.h"

#include <tensorpipe/tensorpipe.h>

#include <catch2/catch.hpp>
#include <future>
#include <string>
#include <thread>

#include "backend/thread_role.h"
#include "backend/transport/group_key.h"
#include "backend/transport/shm_transport.h"
#include "backend/transport/tcp_transport.h"
#include "test/unit/callback_ledger.h"
#include "test/unit/on_loop.h"

using namespace torchwire;

namespace {

namespace tp = tensorpipe;

std::shared_ptr<tp::transport::Context> makeTransport(
    const std::string& name, const std::shared_ptr<Loop>& loop) {
  const GroupKey key(7, "0123456789abcdef0123456789abcdef");
  return name == "wire_shm"
      ? makeShmTransport(loop, key)
      : makeTcpTransport(openTcpPort(loop, key, {.bindAddress = "127.0.0.1", .advertiseAddress = {}}), 0);
}

// One of two workers.
struct Side {
  explicit Side(const std::string& transport) {
    context.registerTransport(1, transport, makeTransport(transport, loop));
  }
  ~Side() {
    context.join();
    relay->drain();
  }

  // So that what has come in by now has been read: the loop looks at its streams after each round of tasks.
  void passByTheLoop() const {
    for (int i = 0; i < 3; ++i) {
      onLoop(*loop, [] {});
    }
  }
  std::shared_ptr<Link> link(std::shared_ptr<tp::Pipe> pipe) const {
    return makeTensorPipeLink(std::move(pipe), relay);
  }

  const std::shared_ptr<Loop> loop = Loop::start("side");
  const std::shared_ptr<CallbackRelay> relay = std::make_shared<CallbackRelay>(loop);
  tp::Context context;
};

struct Pipes {
  std::shared_ptr<tp::Pipe> here;
  std::shared_ptr<tp::Pipe> there;
};

// A listener lives as long as the pipes that it accepts are being set up.
Pipes connect(Side& here, Side& there, tp::Listener& listener, const std::string& transport) {
  std::promise<std::shared_ptr<tp::Pipe>> accepted;
  listener.accept([&](const tp::Error&, std::shared_ptr<tp::Pipe> pipe) { accepted.set_value(std::move(pipe)); });
  auto dialled = here.context.connect(listener.url(transport));
  static_cast<void>(there);
  return {std::move(dialled), accepted.get_future().get()};
}

OutgoingFrame frameOf(const std::string& text) {
  OutgoingFrame frame;
  frame.head.assign(text.begin(), text.end());
  return frame;
}

// A thread that is in the midst of a send, in TensorPipe's bookkeeping, until it is let go.
class Sender {
 public:
  /// `closed`: a pipe of the context that is closed, so that TensorPipe calls back at once.
  explicit Sender(const std::shared_ptr<tp::Pipe>& closed)
      : thread_([this, closed] {
          const SendScope scope;
          closed->readDescriptor([this](const tp::Error&, tp::Descriptor) {
            inside_.set_value();
            mayGo_.get_future().wait();
          });
        }) {
    inside_.get_future().wait();
  }
  std::thread::id id() const {
    return thread_.get_id();
  }
  void letGo() {
    mayGo_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> inside_, mayGo_;
  std::thread thread_;
};

} // namespace

// What froze workers: the sender held RRefContext's mutex, the frame's call ended with a tensor that Python knows, and
// who held the GIL wanted that mutex.
TEST_CASE("a frame that comes in the midst of another thread's send is delivered on the loop", "[tensorpipe_link]") {
  const std::string transport = GENERATE("wire_shm", "wire_tcp");
  CAPTURE(transport);
  CallbackLedger ledger;
  Side here(transport), there(transport);
  const auto listener = there.context.listen({transport + "://127.0.0.1"});
  const Pipes pipes = connect(here, there, *listener, transport);
  const Pipes unused = connect(here, there, *listener, transport);
  const auto link = here.link(pipes.here);
  const auto peer = there.link(pipes.there);

  // The link is warm: from here on a frame is one message on an open connection.
  CallbackNote& first = ledger.note("the first frame");
  link->receive([&](const Error& error, IncomingFrame) { first.add(error); });
  peer->send(frameOf("first"), ledger.expect("sending the first frame"));
  REQUIRE(ledger.waitForAll());

  CallbackNote& second = ledger.note("the second frame");
  std::thread::id on;
  bool sending = true;
  link->receive([&](const Error& error, IncomingFrame) {
    on = std::this_thread::get_id();
    sending = isSending();
    second.add(error);
  });
  here.passByTheLoop();

  unused.here->close();
  Sender sender(unused.here);
  CallbackNote& sent = ledger.note("sending the second frame");
  peer->send(frameOf("second"), CallbackLedger::expect(sent));
  REQUIRE(ledger.bell().waitUntil([&] { return sent.called(); }));
  here.passByTheLoop(); // it has read the descriptor, which waits for the sender now
  const std::thread::id senderId = sender.id();
  sender.letGo();

  REQUIRE(ledger.waitForAll());
  CHECK(second.succeeded());
  CHECK(on != senderId);
  CHECK_FALSE(sending);
}

TEST_CASE("what a frame keeps alive does not go in the midst of a send", "[tensorpipe_link]") {
  CallbackLedger ledger;
  Side here("wire_shm"), there("wire_shm");
  const auto listener = there.context.listen({"wire_shm://any"});
  const Pipes pipes = connect(here, there, *listener, "wire_shm");
  const auto link = here.link(pipes.here);

  std::promise<bool> wentInSend;
  OutgoingFrame frame = frameOf("kept");
  frame.owner = std::shared_ptr<void>(nullptr, [&](void*) { wentInSend.set_value(isSending()); });
  pipes.here->close(); // so that TensorPipe calls back at once
  link->send(std::move(frame), ledger.expect("a send on a closed pipe"));
  REQUIRE(ledger.waitForAll());
  CHECK_FALSE(wentInSend.get_future().get());
}

TEST_CASE("drain waits for what deliveries hand on in turn", "[tensorpipe_link]") {
  const auto loop = Loop::start("relay");
  const auto relay = std::make_shared<CallbackRelay>(loop);
  int delivered = 0; // on the loop only
  {
    const SendScope scope;
    relay->run([&] {
      const SendScope inner; // as a delivery that calls down into TensorPipe again
      relay->run([&] { ++delivered; });
    });
    CHECK(delivered == 0);
  }
  relay->drain();
  CHECK(delivered == 1);
}
