// What the workers of a group have counted, summed up at a round of the shutdown.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "backend/wire/roster.h"

namespace torchwire {

/// One worker's numbers, or the sum of all. A value.
struct Totals {
  int64_t started = 0;
  int64_t finished = 0;
  std::set<WorkerId> missing = {}; // of a group that is not elastic: their numbers are not in it
  std::set<WorkerId> present = {}; // of an elastic one: whose numbers are in it

  bool isOfSameWorkersAs(const Totals& other) const {
    return missing == other.missing && present == other.present;
  }
  bool operator==(const Totals&) const = default;

  /// Adds the numbers, not the workers.
  void add(const Totals& one);

  std::vector<char> encode() const;
  /// Throws FormatError.
  static Totals decode(const std::vector<char>& bytes);
};

} // namespace torchwire
