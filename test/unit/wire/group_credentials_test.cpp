#include "backend/wire/group_credentials.h"

#include <catch2/catch.hpp>
#include <random>

#include "backend/wire/frame.h"

using namespace torchwire;

namespace {

const std::string kSecret =
    "0123456789abcdef0123456789abcdef"; // not stretched, which takes its time
const std::string kOther = "fedcba9876543210fedcba9876543210";
const std::string kRemedy =
    ": give all workers the same one by `secret`, `secret_file` or TORCHWIRE_SECRET_FILE";

WorkerRecord worker(const std::string& name, WorkerId id) {
  WorkerRecord record;
  record.name = name;
  record.id = id;
  return record;
}

using Secrets = std::vector<std::string>;

GroupCredentials drawn(const Secrets& secrets) {
  return GroupCredentials::draw(worker("first", 0), secrets);
}

GroupCredentials afterTheStore(const GroupCredentials& credentials) {
  return GroupCredentials::decode(credentials.encode());
}

std::string objection(const GroupCredentials& credentials, const Secrets& secrets) {
  return afterTheStore(credentials)
      .objectionTo(worker("new", 1), afterTheStore(credentials).admit(secrets).fit)
      .value_or("");
}

bool haveSameKey(const GroupKey& a, const GroupKey& b) {
  return a.groupId() == b.groupId() && b.verify("test", {}, a.prove("test", {}));
}

} // namespace

TEST_CASE("workers without a secret share the one that was drawn", "[group_credentials]") {
  const GroupCredentials credentials = drawn({});
  CHECK(credentials.drawnSecret.size() == 32);
  CHECK(objection(credentials, {}).empty());
  CHECK(haveSameKey(
      credentials.admit({}).keys.front(), afterTheStore(credentials).admit({}).keys.front()));
}

TEST_CASE("workers with the same secret of their own have the same key", "[group_credentials]") {
  const GroupCredentials credentials = drawn({kSecret});
  CHECK(objection(credentials, {kSecret}).empty());
  CHECK(haveSameKey(
      credentials.admit({kSecret}).keys.front(),
      afterTheStore(credentials).admit({kSecret}).keys.front()));
  CHECK(credentials.admit({kOther}).fit == GroupCredentials::Fit::wrong);
  CHECK(credentials.admit({kOther}).keys.empty());
}

TEST_CASE("a worker's first secret has to be one of the group's", "[group_credentials]") {
  const GroupCredentials credentials = drawn({kSecret, kOther});
  const std::string third = "third, of thirty-two bytes or more";
  CHECK(objection(credentials, {kOther}).empty());
  CHECK(afterTheStore(credentials).admit({kSecret, third}).keys.size() == 2);
  CHECK_THAT(
      objection(credentials, {third, kSecret}), Catch::Contains("at another step of a change"));
  CHECK_THAT(objection(credentials, {third}), Catch::Contains("another group secret"));
  const std::vector<GroupKey> keys = GroupCredentials::keysOf(credentials.groupId, {third});
  CHECK(objection(credentials.withKeys(keys), {third}).empty());
  CHECK_FALSE(objection(credentials.withKeys(keys), {kSecret, kOther}).empty());
}

TEST_CASE("a secret of the workers' own does not get into the store", "[group_credentials]") {
  const std::vector<char> bytes = drawn({kSecret}).encode();
  CHECK(std::string(bytes.begin(), bytes.end()).find(kSecret) == std::string::npos);
}

TEST_CASE("every group draws an id, a secret and so a key of its own", "[group_credentials]") {
  const GroupCredentials one = drawn({});
  const GroupCredentials two = drawn({});
  CHECK(one.groupId != two.groupId);
  CHECK(one.drawnSecret != two.drawnSecret);
  CHECK_FALSE(haveSameKey(
      drawn({kSecret}).admit({kSecret}).keys.front(),
      drawn({kSecret}).admit({kSecret}).keys.front()));
}

TEST_CASE("a worker without the group's secret may not join", "[group_credentials]") {
  CHECK(
      objection(drawn({kSecret}), {}) ==
      "worker 'new' (rank 1) was started without a group secret, but worker 'first' (rank 0), "
      "which "
      "began the group, has one" +
          kRemedy);
}

TEST_CASE("a worker with a secret may not join those that have none", "[group_credentials]") {
  CHECK(
      objection(drawn({}), {kSecret}) ==
      "worker 'new' (rank 1) was started with a group secret, but worker 'first' (rank 0), which "
      "began the group, has none" +
          kRemedy + ", or none at all");
}

TEST_CASE("a worker with another secret may not join", "[group_credentials]") {
  CHECK(
      objection(drawn({kSecret}), {kOther}) ==
      "worker 'new' (rank 1) was started with another group secret than worker 'first' (rank 0), "
      "which began the group" +
          kRemedy);
}

TEST_CASE("a secret that is too short is refused", "[group_credentials]") {
  CHECK_THROWS_WITH(drawn({"short"}), "the group secret has 5 bytes; give at least 16");
  CHECK_THROWS_WITH(objection(drawn({kSecret}), {"short"}), Catch::Contains("give at least 16"));
}

TEST_CASE("credentials cut short are refused wherever the cut is", "[group_credentials]") {
  const std::vector<char> whole = drawn({}).encode();
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
    CHECK_THROWS_AS(GroupCredentials::decode(cut), FormatError);
  }
}

TEST_CASE("credentials that are not torchwire's are refused", "[group_credentials]") {
  CHECK_THROWS_WITH(
      GroupCredentials::decode(std::vector<char>(100, 'x')),
      "the store's credentials of the group are not torchwire's");
}

TEST_CASE("credentials of another protocol are refused with both versions", "[group_credentials]") {
  std::vector<char> bytes = drawn({}).encode();
  bytes[sizeof(uint32_t)] = 99;
  bytes.resize(2 * sizeof(uint32_t)); // the rest may have another form
  CHECK_THROWS_WITH(
      GroupCredentials::decode(bytes), Catch::Contains("speak torchwire protocol 99"));
}

TEST_CASE("credentials with a drawn secret that is too short are refused", "[group_credentials]") {
  GroupCredentials credentials = drawn({});
  credentials.drawnSecret = "short";
  CHECK_THROWS_AS(GroupCredentials::decode(credentials.encode()), FormatError);
}

TEST_CASE(
    "what the credentials say of a worker is a line that can be shown", "[group_credentials]") {
  GroupCredentials credentials = drawn({});
  credentials.drawnBy = "worker '\x1b[31m'\nat your service" + std::string(5000, 'x');
  const std::string shown = afterTheStore(credentials).drawnBy;
  CHECK(shown.size() < 1100);
  CHECK(shown.find('\x1b') == std::string::npos);
  CHECK(shown.find('\n') == std::string::npos);
}

TEST_CASE("no bytes make the credentials do more than refuse", "[group_credentials]") {
  const unsigned seed = GENERATE(range(0u, 20u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::vector<char> whole = drawn(seed % 2 == 0 ? Secrets() : Secrets{kSecret}).encode();
  for (int i = 0; i < 200; ++i) {
    std::vector<char> bytes = whole;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      const GroupCredentials credentials = GroupCredentials::decode(bytes);
      credentials.objectionTo(worker("new", 1), credentials.admit({kSecret}).fit);
    } catch (const FormatError&) {
      // As it should be; anything else fails the test.
    }
  }
}
