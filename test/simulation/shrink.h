// From a run that violates an invariant to a short one that does.
#pragma once

#include <string>
#include <vector>

#include "test/simulation/simulation.h"

namespace torchwire::simulation {

/// The steps of a plan that are taken, by their numbers in it.
using Chosen = std::vector<size_t>;

/// Those that TORCHWIRE_TEST_STEPS names, as "3,17,40"; all if it is not set.
Chosen chosenSteps(const Plan& plan);
Plan only(const Plan& plan, const Chosen& chosen);

/// As few steps as can be found in so many runs that still violate the same invariant.
Chosen shrink(const Plan& plan, Bug bug, const Chosen& from, Invariant invariant, int runs = 2000);

/// Several lines: what is violated, by which steps, what happened, and the command that repeats it.
std::string report(const Plan& plan, Bug bug, const Chosen& chosen);

} // namespace torchwire::simulation
