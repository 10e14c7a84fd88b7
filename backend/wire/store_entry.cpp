#include "backend/wire/store_entry.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace torchwire {
namespace {

// 0 magic  4 version  12 value  ... proof
constexpr unsigned char kMagic[4] = {'T', 'W', 'S', 'E'};
constexpr size_t kHead = sizeof kMagic + sizeof(uint64_t);
constexpr char kRole[] = "store entry"; // goes into the proofs, so that it stays

bool isEntry(const StoreEntry::Bytes& bytes) {
  return bytes.size() >= kHead + sizeof(Proof) &&
      std::equal(std::begin(kMagic), std::end(kMagic), bytes.begin());
}

/// Of the name, with its length before it, and of all before the proof.
Proof proofOf(
    const GroupKey& key, const std::string& name, std::span<const unsigned char> content) {
  StoreEntry::Bytes said(sizeof(uint64_t));
  const uint64_t length = name.size();
  std::memcpy(said.data(), &length, sizeof length);
  said.insert(said.end(), name.begin(), name.end());
  said.insert(said.end(), content.begin(), content.end());
  return key.prove(kRole, said);
}

} // namespace

StoreEntry::Bytes StoreEntry::prove(
    const GroupKey& key, const std::string& name, uint64_t version, const Bytes& value) {
  Bytes bytes(kHead);
  std::copy(std::begin(kMagic), std::end(kMagic), bytes.begin());
  std::memcpy(bytes.data() + sizeof kMagic, &version, sizeof version);
  bytes.insert(bytes.end(), value.begin(), value.end());
  const Proof proof = proofOf(key, name, bytes);
  bytes.insert(bytes.end(), proof.begin(), proof.end());
  return bytes;
}

StoreEntry StoreEntry::read(const GroupKey* key, const std::string& name, const Bytes& bytes) {
  if (!isEntry(bytes)) {
    return {.value = bytes, .bytes = bytes};
  }
  const std::span<const unsigned char> content(bytes.data(), bytes.size() - sizeof(Proof));
  StoreEntry entry;
  entry.bytes = bytes;
  std::memcpy(&entry.version, bytes.data() + sizeof kMagic, sizeof entry.version);
  entry.value.assign(content.begin() + kHead, content.end());
  Proof proof;
  std::copy(bytes.end() - sizeof proof, bytes.end(), proof.begin());
  entry.proven = key != nullptr && proofsAreEqual(proofOf(*key, name, content), proof);
  return entry;
}

} // namespace torchwire
