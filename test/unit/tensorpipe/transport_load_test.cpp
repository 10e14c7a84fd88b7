// Many connections, and many threads that use them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "test/unit/support/transport_under_test.h"

using namespace torchwire;

namespace {

std::vector<std::string> messagesOf(size_t sender, size_t count) {
  std::vector<std::string> all;
  for (size_t i = 0; i < count; ++i) {
    all.push_back(patterned((sender + 1) * i * 37 % 30'000, sender * 1000 + i));
  }
  return all;
}

template <typename Work>
void inThreads(size_t count, Work work) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([i, &work] { work(i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

} // namespace

TEST_CASE("many connections between two contexts carry each its own", "[transport_load]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  std::vector<ConnectedEnds> all = transport.connect(64);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].dialer.writeAll(messagesOf(i, 20));
    all[i].accepter.writeAll(messagesOf(i + 100, 20));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].accepter.readAll(messagesOf(i, 20));
    all[i].dialer.readAll(messagesOf(i + 100, 20));
  }
  REQUIRE(transport.settle());
}

TEST_CASE("many dial at once", "[transport_load]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  constexpr size_t kCount = 64;
  std::vector<std::shared_ptr<TransportEnd>> accepters;
  std::vector<TransportEnd> dialers;
  for (size_t i = 0; i < kCount; ++i) {
    accepters.push_back(transport.accept());
    dialers.push_back(transport.dial());
    dialers.back().write(patterned(1000, i));
  }
  REQUIRE(transport.settle());
  std::vector<std::shared_ptr<Reading>> readings;
  for (const auto& accepter : accepters) {
    readings.push_back(accepter->read());
  }
  REQUIRE(transport.settle());
  for (size_t i = 0; i < kCount; ++i) {
    const std::string expected = patterned(1000, i);
    const auto isIt = [&](const auto& reading) { return reading->brought(expected); };
    CHECK(std::count_if(readings.begin(), readings.end(), isIt) == 1);
  }
}

TEST_CASE("threads with a connection each write and read at once", "[transport_load]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  constexpr size_t kThreads = 6;
  std::vector<ConnectedEnds> all = transport.connect(kThreads);
  inThreads(kThreads, [&](size_t i) {
    all[i].dialer.writeAll(messagesOf(i, 200));
    all[i].accepter.readAll(messagesOf(i, 200));
    all[i].accepter.writeAll(messagesOf(i + 10, 200));
    all[i].dialer.readAll(messagesOf(i + 10, 200));
  });
  REQUIRE(transport.settle());
}

TEST_CASE("messages of several threads on one connection do not mix", "[transport_load]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  constexpr size_t kThreads = 4;
  constexpr size_t kEach = 100;
  auto [dialer, accepter] = transport.connect();
  inThreads(kThreads, [&, end = dialer](size_t i) {
    TransportEnd mine = end;
    for (size_t n = 0; n < kEach; ++n) {
      mine.write(std::to_string(i) + patterned(n * 100, n));
    }
  });
  std::vector<size_t> next(kThreads);
  for (size_t n = 0; n < kThreads * kEach; ++n) {
    const auto reading = accepter.read();
    REQUIRE(transport.waitFor(reading->note));
    const size_t sender = reading->bytes.at(0) - '0';
    const size_t number = next.at(sender)++;
    REQUIRE(reading->brought(std::to_string(sender) + patterned(number * 100, number)));
  }
  REQUIRE(transport.settle());
}

TEST_CASE("threads connect and close at once", "[transport_load]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  constexpr size_t kThreads = 4;
  constexpr size_t kRounds = 20;
  const std::string address = transport.listener().addr();
  std::vector<std::shared_ptr<TransportEnd>> accepters;
  for (size_t i = 0; i < kThreads * kRounds; ++i) {
    accepters.push_back(transport.accept());
  }
  inThreads(kThreads, [&](size_t i) {
    for (size_t round = 0; round < kRounds; ++round) {
      TransportEnd end = transport.dial(address);
      CallbackNote& written = end.write(patterned(i * 1000));
      end.read();
      transport.waitFor(written);
      if (round % 2 == 0) {
        end.close();
      }
    }
  });
  REQUIRE(transport.settle());
}

TEST_CASE("a join comes while threads still write", "[transport_load]") {
  TransportUnderTest transport(GENERATE(from_range(transportKinds())));
  constexpr size_t kThreads = 4;
  std::vector<ConnectedEnds> all = transport.connect(kThreads);
  inThreads(kThreads + 1, [&](size_t i) {
    if (i == kThreads) {
      return transport.server().join();
    }
    for (size_t n = 0; n < 200; ++n) {
      all[i].dialer.write(patterned(n * 10));
      all[i].accepter.write(patterned(n * 10));
      all[i].accepter.read();
    }
  });
  for (size_t i = 0; i < kThreads; ++i) {
    all[i].dialer.close();
  }
  REQUIRE(transport.settle());
}
