// Contexts: how they end with all that they carry, and who is near to whom.
#include <atomic>
#include <catch2/catch.hpp>

#include "test/unit/support/transport_under_test.h"

using namespace torchwire;

TEST_CASE("contexts of one machine are in one domain", "[transport_context]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  const std::string& domain = transport.server().domainDescriptor();
  CHECK_FALSE(domain.empty());
  CHECK(domain == transport.client().domainDescriptor());
  CHECK(transport.server().canCommunicateWithRemote(transport.client().domainDescriptor()));
  CHECK(transport.client().canCommunicateWithRemote(domain));
}

TEST_CASE("contexts of different transports are in different domains", "[transport_context]") {
  const std::vector<TransportKind> kinds = transportKinds();
  for (size_t i = 0; i < kinds.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (kinds[i].name.starts_with(kinds[j].name)) { // one transport with other options
        continue;
      }
      TransportUnderTest one(kinds[i]);
      TransportUnderTest other(kinds[j]);
      CHECK_FALSE(one.server().canCommunicateWithRemote(other.server().domainDescriptor()));
    }
  }
}

TEST_CASE("a context that is closed ends its connections and listeners", "[transport_context]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  std::vector<ConnectedEnds> all = transport.connect(3);
  CallbackNote& accepted = transport.ledger.note("accept");
  transport.accept(accepted, transport.listener());
  std::vector<std::shared_ptr<Reading>> readings;
  for (auto& [dialer, accepter] : all) {
    readings.push_back(dialer.read());
    readings.push_back(accepter.read());
  }
  transport.server().close();
  transport.server().close();
  REQUIRE(transport.settle());
  CHECK(accepted.error());
  for (const auto& reading : readings) {
    CHECK(reading->failed());
  }
}

TEST_CASE("what is asked of a closed context fails through the callbacks", "[transport_context]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  const std::string address = transport.listener().addr();
  const bool joined = GENERATE(false, true);
  CAPTURE(joined);
  for (TpContext* context : {&transport.server(), &transport.client()}) {
    joined ? context->join() : context->close();
  }
  TransportEnd dialer = transport.dial(address);
  const auto reading = dialer.read();
  const CallbackNote& written = dialer.write("too late");
  const auto listener = transport.listen();
  CHECK_NOTHROW(listener->addr());
  CallbackNote& accepted = transport.ledger.note("accept");
  transport.accept(accepted, *listener);
  REQUIRE(transport.settle());
  CHECK(reading->failed());
  CHECK(written.error());
  CHECK(accepted.error());
}

TEST_CASE("after a join no callback is pending and none comes", "[transport_context]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  std::vector<ConnectedEnds> all = transport.connect(8);
  CallbackNote& accepted = transport.ledger.note("accept");
  transport.accept(accepted, transport.listener());
  for (auto& [dialer, accepter] : all) {
    accepter.write(patterned(4 << 20));
    accepter.write("and a little");
    accepter.read();
    dialer.read();
    dialer.write(patterned(1 << 20));
  }
  SECTION("with everything still there") {}
  SECTION("with closed connections") {
    for (auto& [dialer, accepter] : all) {
      accepter.close();
    }
  }
  SECTION("with dropped connections") {
    all.clear();
  }
  transport.server().join();
  transport.client().join();
  CHECK(transport.ledger.allCalled());
  CHECK(transport.ledger.complaints().empty());
  transport.server().join();
}

TEST_CASE("the join of one side leaves the other able to work", "[transport_context]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  auto [dialer, accepter] = transport.connect();
  const auto lost = accepter.read();
  transport.client().join();
  REQUIRE(transport.settle());
  CHECK(lost->failed());
  TransportEnd itself(
      transport.ledger, "dialer", transport.server().connect(transport.listener().addr()));
  itself.write("alone");
  CallbackNote& accepted = transport.ledger.note("accept");
  const auto end = transport.accept(accepted, transport.listener());
  REQUIRE(transport.settle());
  const auto reading = end->read();
  REQUIRE(transport.settle());
  CHECK(reading->brought("alone"));
}

TEST_CASE("joins from several threads all wait for the end", "[transport_context]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  std::vector<ConnectedEnds> all = transport.connect(4);
  for (auto& [dialer, accepter] : all) {
    accepter.read();
    accepter.write(patterned(4 << 20));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { transport.server().join(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(transport.ledger.allCalled());
}

TEST_CASE("connections and listeners may outlive their context", "[transport_context]") {
  const TransportKind kind = GENERATE(from_range(transportKinds()));
  TransportUnderTest transport(kind);
  auto context = kind.makeContext(kGroupSecret);
  auto listener = context->listen(kind.listenAddress);
  TransportEnd end(transport.ledger, "survivor", context->connect(listener->addr()));
  const auto pending = end.read();
  context->join();
  context.reset();
  CallbackNote& accepted = transport.ledger.note("accept");
  transport.accept(accepted, *listener);
  const auto late = end.read();
  REQUIRE(transport.settle());
  CHECK(pending->failed());
  CHECK(late->failed());
  CHECK(accepted.error());
}

TEST_CASE("a context without work comes and goes", "[transport_context]") {
  const TransportKind kind = GENERATE(from_range(transportKinds()));
  CAPTURE(kind.name);
  for (int i = 0; i < 20; ++i) {
    const auto context = kind.makeContext(kGroupSecret);
    CHECK(context->isViable());
    if (i % 2 == 0) {
      context->join(); // else its destructor does
    }
  }
}

TEST_CASE("contexts are dropped with all that they carry", "[transport_context]") {
  const TransportKind kind = GENERATE(from_range(transportKinds()));
  TransportUnderTest transport(kind);
  auto context = kind.makeContext(kGroupSecret);
  auto listener = context->listen(kind.listenAddress);
  TransportEnd end(transport.ledger, "dialer", context->connect(listener->addr()));
  const auto reading = end.read();
  CallbackNote& accepted = transport.ledger.note("accept");
  transport.accept(accepted, *listener);
  context.reset();
  end.drop();
  listener.reset();
  REQUIRE(transport.settle());
  CHECK(reading->failed());
  CHECK(
      accepted.called()); // with the connection, where that was faster than the end of the context
}
