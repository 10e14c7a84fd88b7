#include "backend/call/latency_histogram.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

using namespace torchwire;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST_CASE("each duration lies in a bucket between two bounds", "[latency_histogram]") {
  uint64_t lower = 0;
  for (size_t i = 0; i + 1 < LatencyHistogram::kBuckets; ++i) {
    const auto bound = static_cast<uint64_t>(LatencyHistogram::boundOf(i).count());
    CAPTURE(i, lower, bound);
    REQUIRE(bound > lower);
    CHECK(LatencyHistogram::bucketOf(lower) == i);
    CHECK(LatencyHistogram::bucketOf(bound - 1) == i);
    CHECK((i < 8 || static_cast<double>(bound) / static_cast<double>(lower) <= 1.25));
    lower = bound;
  }
  CHECK(LatencyHistogram::bucketOf(lower) == LatencyHistogram::kBuckets - 1);
  CHECK(LatencyHistogram::bucketOf(~uint64_t{0}) == LatencyHistogram::kBuckets - 1);
}

TEST_CASE("quantiles lie where the durations do", "[latency_histogram]") {
  LatencyHistogram histogram;
  CHECK(histogram.snapshot().quantile(0.5) == nanoseconds(0));
  for (int i = 0; i < 98; ++i) {
    histogram.add(microseconds(100));
  }
  histogram.add(milliseconds(50));
  histogram.add(milliseconds(50));
  const auto snapshot = histogram.snapshot();
  CHECK(snapshot.count() == 100);
  CHECK(snapshot.sum == 98 * microseconds(100) + milliseconds(100));
  CHECK(snapshot.quantile(0.5) > microseconds(80));
  CHECK(snapshot.quantile(0.5) < microseconds(125));
  CHECK(snapshot.quantile(0.99) > milliseconds(40));
  CHECK(snapshot.quantile(0.99) < milliseconds(64));
}

TEST_CASE("a duration below zero counts as none", "[latency_histogram]") {
  LatencyHistogram histogram;
  histogram.add(nanoseconds(-5));
  CHECK(histogram.snapshot().counts[0] == 1);
  CHECK(histogram.snapshot().sum == nanoseconds(0));
}

TEST_CASE("threads that add at the same time lose nothing", "[latency_histogram]") {
  LatencyHistogram histogram;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&histogram] {
      for (int j = 0; j < 10000; ++j) {
        histogram.add(microseconds(j));
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(histogram.snapshot().count() == 40000);
}
