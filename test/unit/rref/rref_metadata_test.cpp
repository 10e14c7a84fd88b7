#include "rref/ledger/rref_metadata.h"

#include <catch2/catch.hpp>

namespace torchwire {
namespace {

using std::chrono::seconds;

const GlobalId kId{0, 1};
const RRefMetadata::Clock::time_point kStart{};

} // namespace

TEST_CASE("an RRef's age counts from when it was first seen", "[rref_metadata]") {
  RRefMetadata notes;
  CHECK_FALSE(notes.find(kId));
  CHECK(notes.see(kId, kStart) == kStart);
  CHECK(notes.see(kId, kStart + seconds(5)) == kStart);
}

TEST_CASE("a creation site may come before the RRef or after it", "[rref_metadata]") {
  RRefMetadata notes;
  SECTION("before") {
    notes.placeAt(kId, "here", kStart);
    notes.see(kId, kStart + seconds(1));
  }
  SECTION("after") {
    notes.see(kId, kStart);
    notes.placeAt(kId, "here", kStart + seconds(1));
  }
  CHECK(notes.find(kId)->site == "here");
  CHECK(notes.find(kId)->since == kStart);
}

TEST_CASE("a sweep leaves what lives, and what is too new to judge", "[rref_metadata]") {
  RRefMetadata notes;
  const GlobalId dead{0, 2};
  const GlobalId young{0, 3};
  notes.see(kId, kStart);
  notes.see(dead, kStart);
  const auto later = kStart + RRefMetadata::kGrace + seconds(1);
  notes.see(young, later);
  notes.sweep({kId}, later);
  CHECK(notes.find(kId));
  CHECK(notes.find(young));
  CHECK_FALSE(notes.find(dead));
}

TEST_CASE("sweeps are asked for seldom enough", "[rref_metadata]") {
  RRefMetadata notes;
  RRefMetadata::Ids alive;
  int sweeps = 0;
  const auto late = kStart + RRefMetadata::kGrace + seconds(1);
  for (int64_t i = 0; i < 100'000; ++i) {
    notes.see(GlobalId{0, i}, kStart);
    if (i % 2 == 0) {
      alive.insert(GlobalId{0, i});
    }
    if (notes.wantsSweep()) {
      notes.sweep(alive, late);
      ++sweeps;
    }
  }
  CHECK(sweeps < 20);
  CHECK(notes.size() < 150'000);
}

} // namespace torchwire
