#include "backend/call/duplicate_filter.h"

#include <catch2/catch.hpp>

using namespace torchwire;

TEST_CASE("a call is new once", "[duplicate_filter]") {
  DuplicateFilter seen;
  CHECK(seen.add(1, 10));
  CHECK_FALSE(seen.add(1, 10));
  CHECK(seen.add(1, 11));
  CHECK_FALSE(seen.add(1, 10));
}

TEST_CASE("callers count their calls apart", "[duplicate_filter]") {
  DuplicateFilter seen;
  CHECK(seen.add(1, 10));
  CHECK(seen.add(2, 10));
}

TEST_CASE("whoever comes back under a rank starts anew", "[duplicate_filter]") {
  DuplicateFilter seen;
  seen.add(1, 10);
  seen.add(2, 10);
  seen.forget(1);
  CHECK(seen.add(1, 10));
  CHECK_FALSE(seen.add(2, 10));
}

TEST_CASE("the latest calls are remembered, and no more", "[duplicate_filter]") {
  DuplicateFilter seen(3);
  for (uint64_t id = 1; id <= 4; ++id) {
    CHECK(seen.add(1, id));
  }
  CHECK_FALSE(seen.add(1, 4));
  CHECK_FALSE(seen.add(1, 2));
  CHECK(seen.add(1, 1));
}
