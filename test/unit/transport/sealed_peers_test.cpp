#include "backend/transport/sealed_peers.h"

#include <catch2/catch.hpp>
#include <memory>

using namespace torchwire;

TEST_CASE("a peer is a sealed one as long as a connection with it is", "[sealed_peers]") {
  const auto peers = std::make_shared<SealedPeers>();
  CHECK(peers->algorithmWith(7) == RecordAlgorithm::none);
  auto one = peers->add(7, RecordAlgorithm::aes256Gcm);
  auto other = peers->add(7, RecordAlgorithm::aes256Gcm);
  const auto elsewhere = peers->add(8, RecordAlgorithm::chaCha20Poly1305);
  CHECK(peers->algorithmWith(7) == RecordAlgorithm::aes256Gcm);
  CHECK(peers->algorithmWith(8) == RecordAlgorithm::chaCha20Poly1305);
  one.reset();
  CHECK(peers->algorithmWith(7) == RecordAlgorithm::aes256Gcm);
  other.reset();
  CHECK(peers->algorithmWith(7) == RecordAlgorithm::none);
}

TEST_CASE("a connection may outlive whoever asks for the peers", "[sealed_peers]") {
  auto peers = std::make_shared<SealedPeers>();
  auto connection = peers->add(7, RecordAlgorithm::aes256Gcm);
  peers.reset();
  connection.reset();
}
