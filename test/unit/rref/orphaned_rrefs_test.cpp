#include "rref/ledger/orphaned_rrefs.h"

#include <catch2/catch.hpp>

using namespace torchwire;

TEST_CASE("an RRef is an orphan until its last fork here is gone", "[orphaned_rrefs]") {
  const GlobalId rref{1, 7};
  const GlobalId fork{2, 3};
  const GlobalId another{2, 4};
  OrphanedRRefs orphans;
  CHECK_FALSE(orphans.any());
  CHECK_FALSE(orphans.contains(rref));
  orphans.add(rref, fork);
  orphans.add(rref, fork); // its owner has died twice, as far as was heard
  orphans.add(rref, another);
  CHECK(orphans.any());
  CHECK(orphans.contains(rref));
  CHECK_FALSE(orphans.contains(fork));

  CHECK(orphans.remove(fork));
  CHECK_FALSE(orphans.remove(fork));
  CHECK(orphans.contains(rref));
  CHECK(orphans.remove(another));
  CHECK_FALSE(orphans.contains(rref));
  CHECK_FALSE(orphans.any());
}
