#include "backend/wire/group_key.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "test/unit/support/hex.h"

using namespace torchwire;

namespace {

const std::string kSecret = "0123456789abcdef";
constexpr char kRole[] = "dialling side";

std::vector<unsigned char> bytesOf(const std::string& text) {
  return {text.begin(), text.end()};
}

// All bytes that there are, one after the other, so many times.
std::string allBytes(int times) {
  std::string text;
  for (int i = 0; i < 256 * times; ++i) {
    text += static_cast<char>(i);
  }
  return text;
}

} // namespace

// Computed with Python: the key is hmac(secret, b"torchwire transport 2\0" + group), the proof
// hmac(key, role + b"\0" + transcript), both with SHA-256, the group as 8 bytes, little-endian.
TEST_CASE("a proof is what Python computes, too", "[group_key]") {
  const GroupKey key(0x0123456789abcdef, kSecret);
  CHECK(
      hex(key.prove("dialling side", {})) ==
      "14bc8300846f1098ef27842b1a1e4271747967eec164bd47e97796fd701530f8");
  CHECK(
      hex(key.prove("accepting side", bytesOf("what was said"))) ==
      "990aa933a18e79d27be41218218c687c432f7fe97a98a2171c0d9c541477d103");
  CHECK(
      hex(GroupKey(7, allBytes(1)).prove("dialling side", bytesOf(allBytes(4)))) ==
      "85b02e2e3f2b90650d45f79b3eb225973f431662f8f93711db9356720d42fe44");
}

TEST_CASE("a secret that could be guessed is refused", "[group_key]") {
  CHECK_THROWS_WITH(GroupKey(1, ""), "the group secret has 0 bytes; give at least 16");
  CHECK_THROWS_WITH(
      GroupKey(1, "0123456789abcde"), "the group secret has 15 bytes; give at least 16");
  CHECK_NOTHROW(GroupKey(1, "0123456789abcdef"));
}

TEST_CASE("a secret that may be a password is stretched, for each group anew", "[group_key]") {
  // Computed with Node's crypto.argon2Sync: argon2id, 64 MiB, 2 passes, one lane; the salt is the first 16 bytes of
  // hmac(b"\0", b"torchwire password\0" + group).
  const std::string vector = GroupKey::stretched(0x0123456789abcdef, kSecret);
  CHECK(hex(bytesOf(vector)) == "85a3208cef23327cc863772194b47fd54fd9a9e16ad34366a71a20b4e696f5eb");
  const std::string stretched = GroupKey::stretched(1, kSecret);
  CHECK(stretched.size() == GroupKey::kRandomSecret);
  CHECK(stretched == GroupKey::stretched(1, kSecret));
  CHECK(stretched != GroupKey::stretched(2, kSecret));
  CHECK(stretched != GroupKey::stretched(1, "0123456789abcdeg"));
  const std::string random = GroupKey::drawSecret();
  CHECK(GroupKey::stretched(1, random) == random);
  CHECK_THROWS_WITH(
      GroupKey::stretched(1, "short"), "the group secret has 5 bytes; give at least 16");
}

TEST_CASE("a proof holds for the same secret, group, role and transcript", "[group_key]") {
  const GroupKey key(1, kSecret);
  const auto said = bytesOf("what was said");
  const Proof proof = key.prove(kRole, said);
  CHECK(key.groupId() == 1);
  CHECK(key.verify(kRole, said, proof));
  CHECK(GroupKey(1, kSecret).verify(kRole, said, proof));
}

TEST_CASE("a proof does not hold for anything else", "[group_key]") {
  const GroupKey key(1, kSecret);
  const auto said = bytesOf("what was said");
  const Proof proof = key.prove(kRole, said);
  CHECK_FALSE(GroupKey(2, kSecret).verify(kRole, said, proof));
  CHECK_FALSE(GroupKey(uint64_t{1} << 56, kSecret).verify(kRole, said, proof));
  CHECK_FALSE(GroupKey(1, "0123456789abcdeg").verify(kRole, said, proof));
  CHECK_FALSE(key.verify("accepting side", said, proof));
  CHECK_FALSE(key.verify(kRole, bytesOf("what was sais"), proof));
  CHECK_FALSE(key.verify(kRole, bytesOf("what was sai"), proof));
  CHECK_FALSE(key.verify(kRole, bytesOf("what was said "), proof));
  CHECK_FALSE(key.verify(kRole, {}, proof));
  CHECK_FALSE(key.verify(kRole, said, Proof{}));
}

TEST_CASE("a proof with one bit changed does not hold", "[group_key]") {
  const GroupKey key(1, kSecret);
  const Proof proof = key.prove(kRole, {});
  for (size_t bit = 0; bit < 8 * proof.size(); ++bit) {
    CAPTURE(bit);
    Proof wrong = proof;
    wrong[bit / 8] = static_cast<unsigned char>(wrong[bit / 8] ^ (1 << bit % 8));
    REQUIRE_FALSE(key.verify(kRole, {}, wrong));
  }
}

TEST_CASE("where the role ends and the transcript begins is part of the proof", "[group_key]") {
  const GroupKey key(1, kSecret);
  CHECK(key.prove("role", bytesOf("said")) != key.prove("roles", bytesOf("aid")));
}

TEST_CASE("a key has a label of its own", "[group_key]") {
  const std::string secret(32, 'a');
  const std::string label = GroupKey(1, secret).label();
  CHECK(label.size() == 8);
  CHECK(GroupKey(1, secret).label() == label);
  CHECK(GroupKey(2, secret).label() != label);
  CHECK(GroupKey(1, std::string(32, 'b')).label() != label);
}

TEST_CASE("secrets with zeros in them count to their end", "[group_key]") {
  std::string one(20, '\0'), other(20, '\0');
  other.back() = 1;
  CHECK(GroupKey(1, one).prove(kRole, {}) != GroupKey(1, other).prove(kRole, {}));
}

TEST_CASE("what is drawn is never drawn again, and is long enough", "[group_key]") {
  std::set<std::string> secrets;
  for (int i = 0; i < 100; ++i) {
    secrets.insert(GroupKey::drawSecret());
  }
  CHECK(secrets.size() == 100);
  CHECK(secrets.begin()->size() == 32);
  CHECK_NOTHROW(GroupKey(1, *secrets.begin()));
}
