#include "test/unit/support/transport_under_test.h"

#include <tensorpipe/transport/uv/factory.h>

#include <utility>

#include "backend/tensorpipe/shm_transport.h"
#include "backend/tensorpipe/tcp_transport.h"
#include "backend/transport/loop.h"
#include "backend/wire/group_key.h"

namespace torchwire {
namespace {

const std::string kGreeting = "hello";

TransportKind referenceKind() {
  return {
      .name = "uv",
      .makeContext = [](const std::string&) { return tensorpipe::transport::uv::create(); },
      .listenAddress = "127.0.0.1",
      .isReference = true};
}

std::shared_ptr<TpContext> makeShm(const std::string& secret) {
  return makeShmTransport(Loop::start("shm"), std::make_shared<const KeyRing>(GroupKey(7, secret)));
}

TransportKind::MakeContext makeTcp(Encryption encryption) {
  return [encryption](const std::string& secret) {
    auto loop = Loop::start("tcp");
    const TcpOptions options{
        .bindAddress = "127.0.0.1", .advertiseAddress = {}, .encryption = encryption};
    return makeTcpTransport(
        openTcpEndpoint(
            std::move(loop), std::make_shared<const KeyRing>(GroupKey(7, secret)), options),
        0);
  };
}

Catch::ScopedMessage namedInReports(const TransportKind& kind) {
  Catch::MessageBuilder message("INFO", CATCH_INTERNAL_LINEINFO, Catch::ResultWas::Info);
  return Catch::ScopedMessage(message << "the transport is " << kind.name);
}

} // namespace

std::vector<TransportKind> ownTransportKinds() {
  return {
      {.name = "wire_shm", .makeContext = makeShm, .listenAddress = ""},
      {.name = "wire_tcp", .makeContext = makeTcp(Encryption::automatic), .listenAddress = ""},
      {.name = "wire_tcp, encrypted", .makeContext = makeTcp(Encryption::on), .listenAddress = ""}};
}

std::vector<TransportKind> transportKinds() {
  std::vector<TransportKind> kinds = ownTransportKinds();
  kinds.insert(kinds.begin(), referenceKind());
  return kinds;
}

TransportUnderTest::TransportUnderTest(const TransportKind& kind)
    : kind_(kind),
      ignoreSigpipe_(kind.isReference),
      name_(namedInReports(kind)),
      server_(kind.makeContext(kGroupSecret)),
      client_(kind.makeContext(kGroupSecret)) {
  REQUIRE(server_->isViable());
  REQUIRE(client_->isViable());
}

TransportUnderTest::~TransportUnderTest() {
  stopServer();
  client_->join();
}

void TransportUnderTest::stopServer() {
  listener_.reset();
  if (server_) {
    server_->join();
    server_.reset();
  }
}

TpListener& TransportUnderTest::listener() {
  if (!listener_) {
    listener_ = listen();
  }
  return *listener_;
}

TransportEnd TransportUnderTest::dial(const std::string& address, const std::string& name) {
  return TransportEnd(ledger, name, client_->connect(address));
}

std::shared_ptr<TransportEnd> TransportUnderTest::accept(CallbackNote& note, TpListener& listener) {
  auto end = std::make_shared<TransportEnd>();
  listener.accept(
      [this, end, &note](const TpError& error, std::shared_ptr<TpConnection> connection) {
        *end = TransportEnd(ledger, "accepter", std::move(connection));
        noting(note)(error);
      });
  return end;
}

ConnectedEnds TransportUnderTest::connect() {
  CallbackNote& accepted = ledger.note("accept");
  const auto accepter = accept(accepted, listener());
  TransportEnd dialer = dial();
  const CallbackNote& greeted = dialer.write(kGreeting);
  REQUIRE(waitFor(accepted));
  REQUIRE(accepted.succeeded());
  const auto greeting = accepter->read();
  REQUIRE(waitFor(greeting->note));
  REQUIRE(waitFor(greeted));
  REQUIRE(greeting->brought(kGreeting));
  return {std::move(dialer), std::move(*accepter)};
}

std::vector<ConnectedEnds> TransportUnderTest::connect(size_t count) {
  std::vector<ConnectedEnds> all;
  for (size_t i = 0; i < count; ++i) {
    all.push_back(connect());
  }
  return all;
}

} // namespace torchwire
