// The transports that the same tests run on: torchwire's own, and TensorPipe's as the reference.
#pragma once

#include <tensorpipe/transport/context.h>
#include <tensorpipe/transport/listener.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "test/unit/support/transport_end.h"

namespace torchwire {

using TpContext = tensorpipe::transport::Context;
using TpListener = tensorpipe::transport::Listener;

/// What the two sides under test have in common.
inline const std::string kGroupSecret = "0123456789abcdef0123456789abcdef";

/// A transport, and where it may differ from the others. Two sides of it can talk to each other.
struct TransportKind {
  /// A context with all that it stands on; joined in the end by TransportUnderTest.
  using MakeContext = std::function<std::shared_ptr<TpContext>(const std::string& secret)>;

  std::string name;
  MakeContext makeContext;
  std::string listenAddress;

  /// TensorPipe's uv, of which less is asked: it accepts a connection as soon as it stands; it knows no
  /// secrets; connect() throws for what is no address; an object that libnop cannot read ends the
  /// process; a peer that is gone raises SIGPIPE; once its loop has ended, callbacks come inside the calls.
  bool isReference = false;
};

/// For GENERATE(from_range(transportKinds())).
std::vector<TransportKind> transportKinds();
/// Those without the reference: torchwire's own.
std::vector<TransportKind> ownTransportKinds();

struct ConnectedEnds {
  TransportEnd dialer;
  TransportEnd accepter;
};

/// For the reference, which writes without MSG_NOSIGNAL. Python ignores the signal too.
class IgnoreSigpipe {
 public:
  explicit IgnoreSigpipe(bool ignore) : before_(std::signal(SIGPIPE, ignore ? SIG_IGN : SIG_DFL)) {}
  ~IgnoreSigpipe() {
    std::signal(SIGPIPE, before_);
  }
  IgnoreSigpipe(const IgnoreSigpipe&) = delete;
  IgnoreSigpipe& operator=(const IgnoreSigpipe&) = delete;

 private:
  void (*const before_)(int);
};

/// A server's and a client's context of one kind, and the ledger of all their callbacks. Everything is
/// joined at its end, so declare buffers and what callbacks use before it, connections after it.
class TransportUnderTest {
 public:
  /// Far more than anything takes, even under a sanitizer on a busy machine.
  static constexpr std::chrono::seconds kPatience{20};

  explicit TransportUnderTest(const TransportKind& kind);
  ~TransportUnderTest();
  TransportUnderTest(const TransportUnderTest&) = delete;
  TransportUnderTest& operator=(const TransportUnderTest&) = delete;

  TpContext& server() {
    return *server_;
  }
  TpContext& client() {
    return *client_;
  }
  /// Ends the server's side altogether: a wire_tcp's port too.
  void stopServer();

  std::shared_ptr<TpListener> listen() {
    return server_->listen(kind_.listenAddress);
  }
  /// The listener that connect() uses; listens from the first call on.
  TpListener& listener();

  /// The client's end of a connection that nobody may have accepted yet.
  TransportEnd dial(const std::string& address, const std::string& name = "dialer");
  TransportEnd dial() {
    return dial(listener().addr());
  }
  /// Accepts one connection; the end is to be used once the note says that it was called.
  std::shared_ptr<TransportEnd> accept(CallbackNote& note, TpListener& listener);
  std::shared_ptr<TransportEnd> accept() {
    return accept(ledger.note("accept"), listener());
  }

  /// A connection between the two sides. Torchwire's listeners show a connection only when the first
  /// message has come, so every connection starts with a greeting from the dialer.
  ConnectedEnds connect();
  std::vector<ConnectedEnds> connect(size_t count);

  const TransportKind& kind() const {
    return kind_;
  }

  /// Waits until all callbacks have been called.
  bool settle() {
    return ledger.notifier().waitUntil([this] { return ledger.allCalled(); }, kPatience);
  }
  template <typename Condition>
  bool waitUntil(Condition holds) {
    return ledger.notifier().waitUntil(holds, kPatience);
  }

  bool waitFor(const CallbackNote& note) {
    return waitUntil([&note] { return note.called(); });
  }

 private:
  const TransportKind kind_;
  const IgnoreSigpipe ignoreSigpipe_;
  const Catch::ScopedMessage name_; // in the report of every failure, also of the ledger's

 public:
  CallbackLedger ledger;

 private:
  std::shared_ptr<TpContext> server_, client_;
  std::shared_ptr<TpListener> listener_;
};

} // namespace torchwire
