#include "backend/group_terms.h"

#include <catch2/catch.hpp>
#include <random>

#include "backend/frame.h"

using namespace torchwire;

namespace {

const std::string kSecret = "0123456789abcdef";
const std::string kOther = "fedcba9876543210";
const std::string kRemedy =
    ": give all workers the same one by `secret`, `secret_file` or TORCHWIRE_SECRET_FILE";

WorkerRecord worker(const std::string& name, WorkerId id) {
  WorkerRecord record;
  record.name = name;
  record.id = id;
  return record;
}

GroupTerms drawn(const std::string& secret) {
  return GroupTerms::draw(worker("first", 0), secret);
}

GroupTerms afterTheStore(const GroupTerms& terms) {
  return GroupTerms::decode(terms.encode());
}

std::string objection(const GroupTerms& terms, const std::string& secret) {
  return afterTheStore(terms).objectionTo(worker("new", 1), secret).value_or("");
}

bool haveSameKey(const GroupKey& a, const GroupKey& b) {
  return a.groupId() == b.groupId() && b.verify("test", {}, a.prove("test", {}));
}

} // namespace

TEST_CASE("workers without a secret share the one that was drawn", "[group_terms]") {
  const GroupTerms terms = drawn("");
  CHECK(terms.drawnSecret.size() == 32);
  CHECK(objection(terms, "").empty());
  CHECK(haveSameKey(terms.key(""), afterTheStore(terms).key("")));
}

TEST_CASE("workers with the same secret of their own have the same key", "[group_terms]") {
  const GroupTerms terms = drawn(kSecret);
  CHECK(objection(terms, kSecret).empty());
  CHECK(haveSameKey(terms.key(kSecret), afterTheStore(terms).key(kSecret)));
  CHECK_FALSE(haveSameKey(terms.key(kSecret), terms.key(kOther)));
}

TEST_CASE("a secret of the workers' own does not get into the store", "[group_terms]") {
  const std::vector<char> bytes = drawn(kSecret).encode();
  CHECK(std::string(bytes.begin(), bytes.end()).find(kSecret) == std::string::npos);
}

TEST_CASE("every group draws an id, a secret and so a key of its own", "[group_terms]") {
  const GroupTerms one = drawn("");
  const GroupTerms two = drawn("");
  CHECK(one.groupId != two.groupId);
  CHECK(one.drawnSecret != two.drawnSecret);
  CHECK_FALSE(haveSameKey(drawn(kSecret).key(kSecret), drawn(kSecret).key(kSecret)));
}

TEST_CASE("a worker without the group's secret may not join", "[group_terms]") {
  CHECK(
      objection(drawn(kSecret), "") ==
      "worker 'new' (rank 1) was started without a group secret, but worker 'first' (rank 0), which "
      "began the group, has one" +
          kRemedy);
}

TEST_CASE("a worker with a secret may not join those that have none", "[group_terms]") {
  CHECK(
      objection(drawn(""), kSecret) ==
      "worker 'new' (rank 1) was started with a group secret, but worker 'first' (rank 0), which "
      "began the group, has none" +
          kRemedy + ", or none at all");
}

TEST_CASE("a worker with another secret may not join", "[group_terms]") {
  CHECK(
      objection(drawn(kSecret), kOther) ==
      "worker 'new' (rank 1) was started with another group secret than worker 'first' (rank 0), "
      "which began the group" +
          kRemedy);
}

TEST_CASE("a secret that is too short is refused", "[group_terms]") {
  CHECK_THROWS_WITH(drawn("short"), "the group secret has 5 bytes; give at least 16");
  CHECK_THROWS_WITH(objection(drawn(kSecret), "short"), Catch::Contains("give at least 16"));
}

TEST_CASE("terms cut short are refused wherever the cut is", "[group_terms]") {
  const std::vector<char> whole = drawn("").encode();
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
    CHECK_THROWS_AS(GroupTerms::decode(cut), FormatError);
  }
}

TEST_CASE("terms that are not torchwire's are refused", "[group_terms]") {
  CHECK_THROWS_WITH(
      GroupTerms::decode(std::vector<char>(100, 'x')),
      "the store's terms of the group are not torchwire's");
}

TEST_CASE("terms of another protocol are refused with both versions", "[group_terms]") {
  std::vector<char> bytes = drawn("").encode();
  bytes[sizeof(uint32_t)] = 99;
  bytes.resize(2 * sizeof(uint32_t)); // the rest may have another form
  CHECK_THROWS_WITH(GroupTerms::decode(bytes), Catch::Contains("speak torchwire protocol 99"));
}

TEST_CASE("terms with a drawn secret that is too short are refused", "[group_terms]") {
  GroupTerms terms = drawn("");
  terms.drawnSecret = "short";
  CHECK_THROWS_AS(GroupTerms::decode(terms.encode()), FormatError);
}

TEST_CASE("no bytes make the terms do more than refuse", "[group_terms]") {
  const unsigned seed = GENERATE(range(0u, 20u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::vector<char> whole = drawn(seed % 2 == 0 ? "" : kSecret).encode();
  for (int i = 0; i < 200; ++i) {
    std::vector<char> bytes = whole;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      const GroupTerms terms = GroupTerms::decode(bytes);
      terms.objectionTo(worker("new", 1), kSecret);
    } catch (const FormatError&) {
      // As it should be; anything else fails the test.
    }
  }
}
