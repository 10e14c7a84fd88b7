#include "backend/wire/session_key.h"

#include <sodium.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/wire/hmac.h"

namespace torchwire {
namespace {

constexpr char kSession[] = "session"; // these go into the keys, so that their spelling stays
constexpr char kRecordKey[] = "record key";
constexpr char kRecordNonce[] = "record nonce";

static_assert(sizeof(PublicKey) == crypto_scalarmult_BYTES);

} // namespace

EphemeralKey::EphemeralKey() {
  randombytes_buf(secret_.data(), secret_.size());
  crypto_scalarmult_base(public_.data(), secret_.data());
}

EphemeralKey::EphemeralKey(const std::array<unsigned char, 32>& secret) : secret_(secret) {
  crypto_scalarmult_base(public_.data(), secret_.data());
}

EphemeralKey::~EphemeralKey() {
  sodium_memzero(secret_.data(), secret_.size());
}

std::optional<std::array<unsigned char, 32>> EphemeralKey::agreeWith(const PublicKey& other) const {
  std::optional<std::array<unsigned char, 32>> agreed(std::in_place); // no copy stays behind
  if (crypto_scalarmult(agreed->data(), secret_.data(), other.data()) != 0) {
    agreed.reset();
  }
  return agreed;
}

std::optional<SessionKey> SessionKey::derive(
    const GroupKey& group, const EphemeralKey& own, const PublicKey& other,
    std::span<const unsigned char> transcript) {
  const std::vector<SessionKey> one = derive(std::vector<GroupKey>{group}, own, other, transcript);
  return one.empty() ? std::nullopt : std::optional(one.front());
}

std::vector<SessionKey> SessionKey::derive(
    const std::vector<GroupKey>& groups, const EphemeralKey& own, const PublicKey& other,
    std::span<const unsigned char> transcript) {
  auto agreed = own.agreeWith(other);
  if (!agreed) {
    return {};
  }
  std::vector<unsigned char> material;
  material.reserve(agreed->size() + transcript.size()); // or insert() would leave a copy behind
  material.insert(material.end(), agreed->begin(), agreed->end());
  material.insert(material.end(), transcript.begin(), transcript.end());
  std::vector<SessionKey> keys;
  for (const GroupKey& group : groups) {
    Proof key = group.prove(kSession, material);
    keys.push_back(SessionKey(key));
    sodium_memzero(key.data(), key.size());
  }
  sodium_memzero(material.data(), material.size());
  sodium_memzero(agreed->data(), agreed->size());
  return keys;
}

SessionKey::~SessionKey() {
  sodium_memzero(key_.data(), key_.size());
}

Proof SessionKey::prove(const char* role, std::span<const unsigned char> words) const {
  return hmac(key_, {labelBytes(role), words});
}

bool SessionKey::verify(
    const char* role, std::span<const unsigned char> words, const Proof& proof) const {
  return proofsAreEqual(prove(role, words), proof);
}

RecordKey SessionKey::recordKey(const char* role, RecordAlgorithm algorithm) const {
  RecordKey record{algorithm, {}, {}};
  Proof key = hmac(key_, {labelBytes(kRecordKey), labelBytes(role)});
  Proof nonce = hmac(key_, {labelBytes(kRecordNonce), labelBytes(role)});
  std::copy_n(key.begin(), record.key.size(), record.key.begin());
  std::copy_n(nonce.begin(), record.nonce.size(), record.nonce.begin());
  sodium_memzero(key.data(), key.size());
  sodium_memzero(nonce.data(), nonce.size());
  return record;
}

} // namespace torchwire
