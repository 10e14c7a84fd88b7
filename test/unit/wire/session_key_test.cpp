#include "backend/wire/session_key.h"

#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "test/unit/support/hex.h"

using namespace torchwire;

namespace {

const GroupKey kGroup(0x0123456789abcdef, "0123456789abcdef");
const std::string kSaid = "what was said";

EphemeralKey ephemeral(unsigned char first) {
  std::array<unsigned char, 32> secret{};
  std::iota(secret.begin(), secret.end(), first);
  return EphemeralKey(secret);
}

std::vector<unsigned char> bytesOf(const std::string& text) {
  return {text.begin(), text.end()};
}

std::optional<SessionKey> derived(
    const GroupKey& group, const EphemeralKey& own, const EphemeralKey& other,
    const std::string& said = kSaid) {
  return SessionKey::derive(group, own, other.publicKey(), bytesOf(said));
}

Proof proofBy(const std::optional<SessionKey>& key) {
  REQUIRE(key);
  return key->prove("dialling side", bytesOf("x"));
}

} // namespace

// Computed with Node's crypto: the session key is hmac(group key, b"session\0" + X25519 + transcript), the proof
// hmac(session key, role + b"\0" + words), a record's key hmac(session key, b"record key\0" + role + b"\0"), and likewise
// b"record nonce\0", of which the first 12 bytes count; all with SHA-256.
TEST_CASE("a session's keys are what Node computes, too", "[session_key]") {
  const EphemeralKey a = ephemeral(1), b = ephemeral(101);
  CHECK(hex(a.publicKey()) == "07a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7c");
  const auto session = derived(kGroup, a, b);
  CHECK(
      hex(proofBy(session)) == "1fa6f38ba72a9ea357c48676f6d7411dd1fa14fc4c5286b0bfa7de0e050d877d");
  const RecordKey record = session->recordKey("dialling side", RecordAlgorithm::aes256Gcm);
  CHECK(hex(record.key) == "9e37bda61a75605069ec1a5099c9e9d78e8226916961d07638703a42b1cf2102");
  CHECK(hex(record.nonce) == "f8777fc82784d13c1918c99e");
}

TEST_CASE("both sides of a session have the same key, and nobody else", "[session_key]") {
  const EphemeralKey a, b, c;
  const Proof proof = proofBy(derived(kGroup, a, b));
  CHECK(proofBy(derived(kGroup, b, a)) == proof);
  CHECK(proofBy(derived(kGroup, a, c)) != proof);
  CHECK(proofBy(derived(kGroup, a, b, "what else was said")) != proof);
  CHECK(proofBy(derived(GroupKey(7, "0123456789abcdef"), a, b)) != proof);
}

TEST_CASE("there is no session with a key by which all would have the same", "[session_key]") {
  CHECK_FALSE(SessionKey::derive(kGroup, EphemeralKey(), PublicKey{}, {}));
  CHECK(SessionKey::derive(std::vector{kGroup}, EphemeralKey(), PublicKey{}, {}).empty());
}

TEST_CASE("each side's records have keys of their own", "[session_key]") {
  const auto session = derived(kGroup, ephemeral(1), ephemeral(2));
  const RecordKey dialing = session->recordKey("dialling side", RecordAlgorithm::aes256Gcm);
  const RecordKey accepting = session->recordKey("accepting side", RecordAlgorithm::aes256Gcm);
  CHECK(dialing.key != accepting.key);
  CHECK(dialing.nonce != accepting.nonce);
}
