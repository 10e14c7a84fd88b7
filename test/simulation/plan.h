// What a run does, as data: so that it can be cut to what matters, printed and done again.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "test/simulation/network.h"

namespace torchwire::simulation {

// Operations of the program come first, then faults.
// clang-format off
#define TORCHWIRE_SIMULATION_STEPS(X)                                                                     \
  X(call)         /* a calls b */                                                                         \
  X(quickCall)    /* with a deadline that may pass */                                                     \
  X(endlessCall)  /* without a deadline */                                                                \
  X(nestedCall)   /* a calls b, which calls c before it answers */                                        \
  X(largeCall)    /* with more bytes */                                                                   \
  X(create)       /* a has b create an RRef */                                                            \
  X(pass)         /* a hands an RRef that it uses or owns to b, which keeps it or not */                  \
  X(drop)         /* a drops an RRef that it uses */                                                      \
  X(openContext)  /* a opens an autograd context */                                                       \
  X(contextCall)  /* a calls b as part of one, and b perhaps c */                                         \
  X(closeContext) /* a releases one */                                                                    \
  X(breakLink)    /* the links between a and b break */                                                   \
  X(cut)          /* nothing gets from a to b for a while, and perhaps not back either */                 \
  X(isolate)      /* nothing gets to a from anywhere for a while, nor back */                             \
  X(slow)         /* what goes from a to b takes longer for a while */                                    \
  X(damage)       /* the next frame from a to b is damaged */                                             \
  X(refuse)       /* the next dials of b by a fail */                                                     \
  X(pause)        /* a stands still for a while */                                                        \
  X(kill)         /* a's process ends */                                                                  \
  X(start)        /* another process comes in its place, if it has ended */                               \
  X(leave)        /* a leaves in order */                                                                 \
  X(storeFails)   /* the next operations of a on the store fail */
// clang-format on

enum class StepKind : uint8_t {
#define TORCHWIRE_STEP(name) name,
  TORCHWIRE_SIMULATION_STEPS(TORCHWIRE_STEP)
#undef TORCHWIRE_STEP
};
const char* nameOf(StepKind kind);
inline bool isFault(StepKind kind) {
  return kind >= StepKind::breakLink;
}

/// One thing that the program does, or that goes wrong. A value.
struct Step {
  std::chrono::microseconds at{0};
  StepKind kind{};
  Slot a = 0, b = 0, c = 0;
  std::chrono::milliseconds time{0}; // how long a fault lasts, or a call may take
  uint64_t choice = 0; // what else there is to choose

  std::string describe() const;
};

/// What a run has throughout. A value.
struct Settings {
  uint64_t seed = 1;
  Slot slots = 3;
  std::chrono::milliseconds sessionTimeout{10000};
  size_t sessionBytes = size_t{64} << 20;
  bool sharesHosts = false; // workers see the processes of others, so that deaths are known at once
  bool keepsPorts = false; // a process listens where the one before it did

  std::string describe() const;
};

struct Plan {
  Settings settings;
  std::vector<Step> steps; // by time
};

/// How much happens in a run.
struct Amount {
  int operations = 1250;
  int faults = 120;
};

/// The same seed and amount make the same plan.
Plan makePlan(uint64_t seed, const Amount& amount);

} // namespace torchwire::simulation
