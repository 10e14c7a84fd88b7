#include "backend/tensorpipe/tensorpipe_link.h"

#include <tensorpipe/tensorpipe.h>

#include <catch2/catch.hpp>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "backend/base/thread_pool.h"
#include "backend/base/thread_role.h"
#include "backend/call/call_table.h"
#include "backend/tensorpipe/shm_transport.h"
#include "backend/tensorpipe/tcp_transport.h"
#include "backend/wire/group_key.h"
#include "test/unit/support/callback_ledger.h"
#include "test/unit/support/on_loop.h"

using namespace torchwire;

namespace {

namespace tp = tensorpipe;

std::shared_ptr<tp::transport::Context> makeTransport(
    const std::string& name, const std::shared_ptr<Loop>& loop) {
  const auto keys =
      std::make_shared<const KeyRing>(GroupKey(7, "0123456789abcdef0123456789abcdef"));
  return name == "wire_shm"
      ? makeShmTransport(loop, keys)
      : makeTcpTransport(
            openTcpEndpoint(loop, keys, {.bindAddress = "127.0.0.1", .advertiseAddress = {}}), 0);
}

// One of two workers.
struct Side {
  explicit Side(const std::string& transport) {
    context.registerTransport(1, transport, makeTransport(transport, loop));
  }
  ~Side() {
    context.join();
    relay->drain();
    buffers->close();
  }

  // So that what has come in by now has been read: the loop looks at its streams after each round of tasks.
  void passByTheLoop() const {
    for (int i = 0; i < 3; ++i) {
      onLoop(*loop, [] {});
    }
  }
  std::shared_ptr<Link> link(std::shared_ptr<tp::Pipe> pipe) const {
    return makeTensorPipeLink(std::move(pipe), relay, buffers);
  }

  Timer timer; // which outlives the pool
  const std::shared_ptr<BufferPool> buffers = std::make_shared<BufferPool>(64 << 20, timer);
  const std::shared_ptr<Loop> loop = Loop::start("side");
  const std::shared_ptr<CallbackRelay> relay = std::make_shared<CallbackRelay>(loop);
  tp::Context context;
};

struct Pipes {
  std::shared_ptr<tp::Pipe> here;
  std::shared_ptr<tp::Pipe> there;
};

// A listener lives as long as the pipes that it accepts are being set up.
Pipes connect(Side& here, tp::Listener& listener, const std::string& transport) {
  const auto accepted = std::make_shared<std::promise<std::shared_ptr<tp::Pipe>>>();
  listener.accept([accepted](const tp::Error&, std::shared_ptr<tp::Pipe> pipe) {
    accepted->set_value(std::move(pipe));
  });
  auto dialed = here.context.connect(listener.url(transport));
  return {std::move(dialed), accepted->get_future().get()};
}

OutgoingFrame frameOf(const std::string& text) {
  OutgoingFrame frame;
  frame.head.assign(text.begin(), text.end());
  return frame;
}

// A thread that is in the midst of a send, in TensorPipe's bookkeeping, until it is let go; with a lock held, as libtorch
// holds RRefContext's mutex when it sends a delete.
class Sender {
 public:
  /// `closed`: a pipe of the context that is closed, so that TensorPipe calls back at once.
  Sender(const std::shared_ptr<tp::Pipe>& closed, std::mutex& context)
      : thread_([this, closed, &context] {
          const std::lock_guard<std::mutex> lock(context);
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
  void release() {
    mayGo_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> inside_, mayGo_;
  std::thread thread_;
};

// What Python knows, and takes the GIL to end.
struct PythonTensor {
  explicit PythonTensor(std::mutex& itsGil) : gil(itsGil) {}
  ~PythonTensor() {
    const std::lock_guard<std::mutex> lock(gil);
  }
  std::mutex& gil;
};

// A link that waits for a frame, and a peer that can send one.
struct WarmLink {
  WarmLink(Side& here, Side& there, tp::Listener& listener, const std::string& transport) {
    Pipes pipes = connect(here, listener, transport);
    link = here.link(std::move(pipes.here));
    peer = there.link(std::move(pipes.there));
    link->receive(
        [this](const Error& error, IncomingFrame) { ledger.note("the first frame").add(error); });
    peer->send(frameOf("first"), ledger.expect("sending the first frame"));
    REQUIRE(ledger.waitForAll());
  }

  CallbackLedger ledger;
  std::shared_ptr<Link> link, peer;
};

} // namespace

// What froze workers: a thread sends the delete of an RRef and holds RRefContext's mutex; a frame comes whose call ends
// with a tensor that Python knows; who holds the GIL wants that mutex.
TEST_CASE(
    "a frame that comes in the midst of another thread's send waits for none of its locks",
    "[tensorpipe_link]") {
  const std::string transport = GENERATE("wire_shm", "wire_tcp");
  CAPTURE(transport);
  std::mutex context, gil;
  Timer timer;
  CallTable calls(timer);
  ThreadPool completions(1, "completions");
  Side here(transport), there(transport);
  const auto listener = there.context.listen({transport + "://127.0.0.1"});
  const auto unused = connect(here, *listener, transport).here;
  WarmLink warm(here, there, *listener, transport);

  CallbackNote& completed = warm.ledger.note("the call");
  const uint64_t call = calls.open(
      1, {}, [&, future = std::make_unique<PythonTensor>(gil)](const Outcome& outcome) mutable {
        completions.run([&completed, future = std::move(future), error = outcome.error] {
          completed.add(error);
        });
      });
  std::thread::id on;
  bool sending = true;
  warm.link->receive([&](const Error&, IncomingFrame frame) {
    on = std::this_thread::get_id();
    sending = isSending();
    calls.answer(call, 1, {FrameHeader(), std::move(frame)});
  });
  here.passByTheLoop();

  unused->close();
  Sender sender(unused, context);
  std::promise<void> hasGil;
  std::thread python([&] {
    const std::lock_guard<std::mutex> withGil(gil);
    hasGil.set_value();
    const std::lock_guard<std::mutex> dropsRRef(context);
  });
  hasGil.get_future().wait();
  CallbackNote& sent = warm.ledger.note("sending the second frame");
  warm.peer->send(frameOf("second"), CallbackLedger::expect(sent));
  REQUIRE(warm.ledger.notifier().waitUntil([&] { return sent.called(); }));
  here.passByTheLoop(); // it has read the descriptor, which waits for the sender now
  const std::thread::id senderId = sender.id();
  sender.release();
  python.join();

  REQUIRE(warm.ledger.waitForAll());
  CHECK(completed.succeeded());
  CHECK(on != senderId);
  CHECK_FALSE(sending);
  completions.join();
  timer.stop();
}

TEST_CASE("what a frame keeps alive does not go in the midst of a send", "[tensorpipe_link]") {
  CallbackLedger ledger;
  std::promise<std::thread::id> wentOn; // outlives the loops
  Side here("wire_shm"), there("wire_shm");
  const auto listener = there.context.listen({"wire_shm://any"});
  const Pipes pipes = connect(here, *listener, "wire_shm");
  const auto link = here.link(pipes.here);

  OutgoingFrame frame = frameOf("kept");
  frame.owner =
      std::shared_ptr<void>(nullptr, [&](void*) { wentOn.set_value(std::this_thread::get_id()); });
  pipes.here->close(); // so that TensorPipe calls back at once
  link->send(std::move(frame), ledger.expect("a send on a closed pipe"));
  REQUIRE(ledger.waitForAll());
  CHECK(wentOn.get_future().get() != std::this_thread::get_id());
}

TEST_CASE("drain waits for what deliveries hand on in turn", "[tensorpipe_link]") {
  const auto loop = Loop::start("relay");
  const auto relay = std::make_shared<CallbackRelay>(loop);
  int delivered = 0; // on the loop only
  std::promise<void> checked;
  loop->post([held = checked.get_future().share()] { held.wait(); });
  {
    const SendScope scope;
    relay->run([&] {
      const SendScope inner; // as a delivery that calls down into TensorPipe again
      relay->run([&] { ++delivered; });
    });
    CHECK(delivered == 0);
    checked.set_value();
  }
  relay->drain();
  CHECK(delivered == 1);
}

TEST_CASE("what a delivery throws reaches neither TensorPipe nor who drains", "[tensorpipe_link]") {
  const auto relay = std::make_shared<CallbackRelay>(Loop::start("relay"));
  const auto thrower = [] { throw std::runtime_error("thrown on purpose"); };
  relay->run(thrower);
  {
    const SendScope scope;
    relay->run(thrower);
  }
  relay->drain();
}
