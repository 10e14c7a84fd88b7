#include "backend/transport/sealed_peers.h"

#include <catch2/catch.hpp>
#include <memory>

using namespace torchwire;

TEST_CASE("a peer is a sealed one as long as a connection with it is", "[sealed_peers]") {
  const auto peers = std::make_shared<SealedPeers>();
  CHECK(peers->peer(7).arrivals == nullptr);
  auto one = peers->add(7, RecordAlgorithm::aes256Gcm);
  auto other = peers->add(7, RecordAlgorithm::aes256Gcm);
  const auto elsewhere = peers->add(8, RecordAlgorithm::chaCha20Poly1305);
  CHECK(peers->peer(7).algorithm == RecordAlgorithm::aes256Gcm);
  CHECK(peers->peer(8).algorithm == RecordAlgorithm::chaCha20Poly1305);
  one.reset();
  CHECK(peers->peer(7).algorithm == RecordAlgorithm::aes256Gcm);
  other.reset();
  CHECK(peers->peer(7).algorithm == RecordAlgorithm::none);
  CHECK(peers->peer(7).arrivals == nullptr);
}

TEST_CASE("what comes from a peer is counted over all connections with it", "[sealed_peers]") {
  const auto peers = std::make_shared<SealedPeers>();
  auto one = peers->add(7, RecordAlgorithm::aes256Gcm);
  const auto elsewhere = peers->add(8, RecordAlgorithm::aes256Gcm);
  const auto arrivals = peers->peer(7).arrivals;
  *one += 10;
  *elsewhere += 1;
  auto other = peers->add(7, RecordAlgorithm::aes256Gcm);
  one.reset();
  *other += 5;
  CHECK(arrivals->load() == 15);
  other.reset();
  CHECK(arrivals->load() == 15); // for whoever still looks
  CHECK(*peers->add(7, RecordAlgorithm::aes256Gcm) == 0);
}

TEST_CASE("a connection may outlive whoever asks for the peers", "[sealed_peers]") {
  auto peers = std::make_shared<SealedPeers>();
  auto connection = peers->add(7, RecordAlgorithm::aes256Gcm);
  peers.reset();
  connection.reset();
}
