// Seeds of randomized tests. TORCHWIRE_TEST_SEED repeats the run of one.
#pragma once

#include <cstdlib>
#include <vector>

namespace torchwire {

/// 1 to `count`, or to as many as TORCHWIRE_TEST_SEEDS says, or the one that the environment names.
inline std::vector<unsigned> seeds(unsigned count) {
  if (const char* chosen = std::getenv("TORCHWIRE_TEST_SEED")) {
    return {static_cast<unsigned>(std::strtoul(chosen, nullptr, 10))};
  }
  if (const char* many = std::getenv("TORCHWIRE_TEST_SEEDS")) {
    count = static_cast<unsigned>(std::strtoul(many, nullptr, 10));
  }
  std::vector<unsigned> all;
  for (unsigned seed = 1; seed <= count; ++seed) {
    all.push_back(seed);
  }
  return all;
}

} // namespace torchwire
