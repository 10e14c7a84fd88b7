// Defects that the simulation plants, to show that each invariant is looked at.
#pragma once

#include <cstdint>

namespace torchwire::simulation {

// Name, invariant that is violated, and what is wrong.
// clang-format off

// In backend/node: plant.py writes them into copies of its sources, so that nothing of it is in the product.
#define TORCHWIRE_BUGS_OF_THE_NODE(X)                                                                    \
  X(servesTwice,      once,      "a worker serves a request twice, now and then")                        \
  X(saysNotSent,      truth,     "the loss of a session is told as if nothing had been sent")            \
  X(saysHasRun,       truth,     "the loss of a session is told as if all had been received")            \
  X(neverReclaims,    truth,     "a worker does not let in who comes in place of a dead one")            \
  X(sendsOnce,        reclaimed, "what is to be sent until it is answered is not sent again")            \
  X(forgetsTheLost,   waits,     "calls are not told of the loss of their worker")                       \
  X(deadTooEarly,     agreement, "a peer whose link breaks is taken for dead")                           \
  X(leavesOnRoster,   agreement, "nobody takes the dead off the list in the store")                      \
  X(asksNobody,       agreement, "a worker that hears nobody declares others dead all the same")         \
  X(asksNoStore,      agreement, "a silent peer is taken for dead whatever the list in the store says")  \
  X(goesOnThoughDead, agreement, "a worker that is told that it has been declared dead goes on")

// In the simulation's own parts, each of which stands for a part of the product that is not compiled into it or that a run
// sets up: what completes futures (dropsCompletion), gives calls their time (endsLate) and their first number (sameCallIds),
// a network (losesFrame), and libtorch's tables of RRefs and contexts.
#define TORCHWIRE_BUGS_AROUND_THE_NODE(X)                                                                \
  X(dropsCompletion,  ends,      "the end of a call is not told")                                        \
  X(endsLate,         ends,      "calls get three times the time that they were given")                  \
  X(losesFrame,       truth,     "a link goes on though one of its frames has not come through")         \
  X(sameCallIds,      truth,     "each process counts its calls from 1")                                 \
  X(keepsForksOfDead, reclaimed, "an owner does not take back what a dead user held")                    \
  X(keepsForksOfLost, reclaimed, "forks stay whose message has been lost with its session")              \
  X(releasesHere,     reclaimed, "a context is released where it was opened, and nobody is told")
// clang-format on

#define TORCHWIRE_SIMULATION_BUGS(X) \
  TORCHWIRE_BUGS_OF_THE_NODE(X)      \
  TORCHWIRE_BUGS_AROUND_THE_NODE(X)

enum class Bug : uint8_t {
  none,
#define TORCHWIRE_BUG(name, invariant, sentence) name,
  TORCHWIRE_SIMULATION_BUGS(TORCHWIRE_BUG)
#undef TORCHWIRE_BUG
};

/// Of the run that goes on: sources of the product have nobody else to ask.
inline Bug plantedBug = Bug::none;

inline bool planted(Bug bug) {
  return bug == plantedBug;
}

} // namespace torchwire::simulation
