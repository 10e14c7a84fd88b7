#include "rref/ledger/rref_metadata.h"

#include <catch2/catch.hpp>

namespace torchwire {
namespace {

using std::chrono::seconds;

const GlobalId kId{0, 1};
const RRefMetadata::Clock::time_point kStart{};

} // namespace

TEST_CASE("an RRef's age counts from when it was first seen", "[rref_metadata]") {
  RRefMetadata metadata;
  CHECK_FALSE(metadata.find(kId));
  CHECK(metadata.see(kId, kStart) == kStart);
  CHECK(metadata.see(kId, kStart + seconds(5)) == kStart);
}

TEST_CASE("a creation site may come before the RRef or after it", "[rref_metadata]") {
  RRefMetadata metadata;
  SECTION("before") {
    metadata.placeAt(kId, "here", kStart);
    metadata.see(kId, kStart + seconds(1));
  }
  SECTION("after") {
    metadata.see(kId, kStart);
    metadata.placeAt(kId, "here", kStart + seconds(1));
  }
  CHECK(metadata.find(kId)->site == "here");
  CHECK(metadata.find(kId)->since == kStart);
}

TEST_CASE("a sweep leaves what lives, and what is too new to judge", "[rref_metadata]") {
  RRefMetadata metadata;
  const GlobalId dead{0, 2};
  const GlobalId young{0, 3};
  metadata.see(kId, kStart);
  metadata.see(dead, kStart);
  const auto later = kStart + RRefMetadata::kGrace + seconds(1);
  metadata.see(young, later);
  metadata.sweep({kId}, later);
  CHECK(metadata.find(kId));
  CHECK(metadata.find(young));
  CHECK_FALSE(metadata.find(dead));
}

TEST_CASE("sweeps are asked for seldom enough", "[rref_metadata]") {
  RRefMetadata metadata;
  RRefMetadata::Ids alive;
  int sweeps = 0;
  const auto late = kStart + RRefMetadata::kGrace + seconds(1);
  for (int64_t i = 0; i < 100'000; ++i) {
    metadata.see(GlobalId{0, i}, kStart);
    if (i % 2 == 0) {
      alive.insert(GlobalId{0, i});
    }
    if (metadata.wantsSweep()) {
      metadata.sweep(alive, late);
      ++sweeps;
    }
  }
  CHECK(sweeps < 20);
  CHECK(metadata.size() < 150'000);
}

} // namespace torchwire
