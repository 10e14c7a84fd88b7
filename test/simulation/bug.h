// Defects that the simulation plants, to show that each invariant is looked at.
#pragma once

#include <cstdint>

#include "test/simulation/oracle.h"

namespace torchwire::simulation {

// In the simulation's own stand-ins, so that nothing of it is in the product.
// clang-format off
#define TORCHWIRE_SIMULATION_BUGS(X)                                                                    \
  X(servesTwice,      once,      "a worker runs a request twice, now and then")                         \
  X(dropsCompletion,  ends,      "the end of a call is not told")                                       \
  X(endsLate,         ends,      "calls get three times the time that they were given")                 \
  X(saysNotSent,      truth,     "the loss of a session is told as if nothing had been sent")           \
  X(saysHasRun,       truth,     "the loss of a session is told as if all had been received")           \
  X(losesFrame,       truth,     "a link goes on though one of its frames has not come through")        \
  X(sameCallIds,      truth,     "each process counts its calls from 1")                                \
  X(neverReclaims,    truth,     "a worker does not let in who comes in place of a dead one")           \
  X(keepsForksOfDead, reclaimed, "an owner does not take back what a dead user held")                   \
  X(keepsForksOfLost, reclaimed, "forks stay whose message has been lost with its session")             \
  X(deletesOnce,      reclaimed, "the delete of a fork is not sent again")                              \
  X(releasesHere,     reclaimed, "a context is released where it was opened, and nobody is told")       \
  X(forgetsTheLost,   waits,     "calls are not told of the loss of their worker")                      \
  X(deadTooEarly,     agreement, "a peer whose link breaks is taken for dead")                          \
  X(leavesOnRoster,   agreement, "nobody takes the dead off the list in the store")
// clang-format on

enum class Bug : uint8_t {
  none,
#define TORCHWIRE_BUG(name, invariant, sentence) name,
  TORCHWIRE_SIMULATION_BUGS(TORCHWIRE_BUG)
#undef TORCHWIRE_BUG
};

} // namespace torchwire::simulation
