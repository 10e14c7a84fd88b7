#include "cuda/transfer/fetch_order.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

using namespace torchwire;
using namespace torchwire::cuda;

TEST_CASE("a lane sends in the order of places, not of requests", "[fetch_order]") {
  FetchOrder order;
  CHECK(!order.next());
  order.add(2, 20);
  order.add(3, 30);
  CHECK(!order.next());
  order.add(1, 10);
  CHECK(order.next() == 10);
  CHECK(order.next() == 20);
  CHECK(order.next() == 30);
  CHECK(!order.next());
}

TEST_CASE("a place that is asked for twice is refused", "[fetch_order]") {
  FetchOrder order;
  order.add(1, 10);
  CHECK_THROWS_AS(order.add(1, 11), FormatError);
  CHECK(order.next() == 10);
  CHECK_THROWS_AS(order.add(1, 12), FormatError);
  CHECK_THROWS_AS(order.add(0, 13), FormatError);
  CHECK(!order.next());
}

TEST_CASE("requests in any order are sent once each, in order", "[fetch_order]") {
  std::mt19937 random(1);
  std::vector<uint64_t> places(200);
  std::iota(places.begin(), places.end(), 1);
  std::shuffle(places.begin(), places.end(), random);
  FetchOrder order;
  std::vector<uint64_t> sent;
  for (const uint64_t place : places) {
    order.add(place, 1000 + place);
    while (const auto number = order.next()) {
      sent.push_back(*number);
    }
  }
  std::vector<uint64_t> expected(200);
  std::iota(expected.begin(), expected.end(), 1001);
  CHECK(sent == expected);
}
