#include "rref/ledger/passed_forks.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace torchwire;
using Fork = PassedForks::Fork;

namespace {

constexpr WorkerId kSelf = 3;

const Fork kOwn{{3, 300}, {3, 70000}, kSelf};
const Fork kOthers{{5, 7}, {3, int64_t{1} << 40}, 5};

// What pickle.dumps((owner, rref, rref, fork, fork, parent)) has made of them.
const std::string kOwnPickled("K\x03K\x03M,\x01K\x03Jp\x11\x01\x00K\x03", 16);
const std::string kOthersPickled("K\x05K\x05K\x07K\x03\x8a\x06\x00\x00\x00\x00\x00\x01K\x03", 18);

std::vector<GlobalId> forksOf(const std::vector<Fork>& forks) {
  std::vector<GlobalId> ids;
  for (const Fork& one : forks) {
    ids.push_back(one.fork);
  }
  return ids;
}

} // namespace

TEST_CASE("forks are found in the message that carries them", "[passed_forks]") {
  PassedForks forks;
  CHECK(forks.sent(1, kOwnPickled).empty()); // nothing has been pickled
  forks.pickled(kOwn, kSelf);
  forks.pickled(kOthers, kSelf);
  CHECK(forks.sent(1, "another message").empty());
  CHECK_FALSE(forks.sent(2, "(" + kOthersPickled + "...").empty());
  CHECK_FALSE(forks.sent(1, "..." + kOwnPickled + "...").empty());
  CHECK(forks.sent(4, kOwnPickled).empty()); // each goes once
  CHECK(forksOf(forks.takeThoseOf(1)) == std::vector{kOwn.fork});
  CHECK(forks.takeThoseOf(1).empty());
  CHECK(forksOf(forks.takeThoseOf(2)) == std::vector{kOthers.fork});
}

TEST_CASE("a fork that is withdrawn is not looked for any more", "[passed_forks]") {
  PassedForks forks;
  forks.pickled(kOwn, kSelf);
  forks.pickled(kOthers, kSelf);
  CHECK(forksOf(forks.withdrawn({kOwn})) == std::vector{kOwn.fork});
  CHECK(forks.sent(1, kOwnPickled).empty());
  CHECK(forks.sent(1, kOthersPickled) == std::vector{kOthers.fork});
}

TEST_CASE("a fork in a message is not withdrawn", "[passed_forks]") {
  PassedForks forks;
  forks.pickled(kOwn, kSelf);
  CHECK(forks.sent(1, kOwnPickled) == std::vector{kOwn.fork});
  CHECK(forks.withdrawn({kOwn}).empty());
  CHECK(forksOf(forks.takeThoseOf(1)) == std::vector{kOwn.fork});
}

TEST_CASE("a message may carry several forks", "[passed_forks]") {
  PassedForks forks;
  forks.pickled(kOwn, kSelf);
  forks.pickled(kOthers, kSelf);
  CHECK_FALSE(forks.sent(1, kOthersPickled + kOwnPickled).empty());
  CHECK(forks.takeThoseOf(1).size() == 2);
}

TEST_CASE("all forks of a large message are found, in whatever order", "[passed_forks]") {
  PassedForks forks;
  std::string payload;
  for (int number = 0; number < 1000; ++number) {
    const auto byte = static_cast<char>(number);
    forks.pickled({{3, 1}, {3, 70000 + number}, kSelf}, kSelf);
    const std::string one{
        'K',
        3,
        'K',
        3,
        'K',
        1,
        'K',
        3,
        'J',
        static_cast<char>((70000 + number) & 0xff),
        static_cast<char>((70000 + number) >> 8 & 0xff),
        1,
        0,
        'K',
        3,
        byte};
    payload = number % 3 == 0 ? one + payload : payload + one;
  }
  CHECK(forks.sent(1, payload).size() == 1000);
}

// Pickle's protocol 4 begins a frame between two numbers, once 64 KiB are full.
TEST_CASE("a fork is found on both sides of a frame's beginning", "[passed_forks]") {
  const std::string frame("\x95\x10\x27\x00\x00\x00\x00\x00\x00", 9);
  const std::string before(70000, '\x95');
  for (const size_t at : {size_t{2}, size_t{4}, size_t{7}, size_t{9}, size_t{14}}) {
    CAPTURE(at);
    PassedForks forks;
    forks.pickled(kOwn, kSelf);
    CHECK(forks.sent(1, before + kOwnPickled.substr(0, at - 1) + frame + kOwnPickled.substr(at - 1))
              .empty()); // inside a number
    CHECK(
        forks.sent(
            1, before + kOwnPickled.substr(0, at) + frame + kOwnPickled.substr(at) + "...") ==
        std::vector{kOwn.fork});
  }
}

TEST_CASE("the forks of a message that is never sent are taken back", "[passed_forks]") {
  PassedForks forks;
  forks.pickled(kOwn, kSelf);
  forks.pickled(kOthers, kSelf);
  const PassedForks::Forks inMessage = forks.sent(1, kOwnPickled);
  forks.sent(1, kOthersPickled);
  CHECK(forksOf(forks.take(inMessage)) == std::vector{kOwn.fork});
  CHECK(forks.take(inMessage).empty());
  CHECK(forksOf(forks.takeThoseOf(1)) == std::vector{kOthers.fork});
}

TEST_CASE("a fork is forgotten when its holder has told of it, or has none", "[passed_forks]") {
  PassedForks forks;
  forks.pickled(kOwn, kSelf);
  forks.pickled(kOthers, kSelf);
  REQUIRE_FALSE(forks.sent(1, kOwnPickled).empty());
  forks.settled(kOwn.fork);
  CHECK(forks.takeThoseOf(1).empty());
  CHECK(forks.sent(kSelf, kOthersPickled).empty()); // to itself
  CHECK(forks.size() == 0);
}

TEST_CASE("a fork is forgotten with its owner", "[passed_forks]") {
  PassedForks forks;
  forks.pickled(kOwn, kSelf);
  forks.pickled(kOthers, kSelf);
  forks.sent(1, kOwnPickled);
  forks.sent(1, kOthersPickled);
  CHECK(forksOf(forks.takeThoseOf(kOthers.owner)) == std::vector{kOthers.fork});
  CHECK(forks.size() == 1);
}

TEST_CASE("of forks that are never sent only the newest are kept", "[passed_forks]") {
  PassedForks forks;
  forks.pickled(kOwn, kSelf);
  for (int64_t number = 0; number < 16384; ++number) {
    forks.pickled({{3, 1}, {3, 1000000 + number}, kSelf}, kSelf);
  }
  CHECK(forks.sent(1, kOwnPickled).empty());
}
