// What a worker asks another one about calls that take long, and the answer (backend/node/whereabouts.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/wire/roster.h"

namespace torchwire {

/// Where are these calls of the sender's? A value.
struct WhereaboutsQuestion {
  /// A worker at which the question has been, and the thread there with whose call it has gone on.
  struct Step {
    WorkerId worker;
    uint64_t thread; // as pthread_self() has it; 0: the caller's, which is not known
  };
  static constexpr size_t kMaxSteps = 32;

  bool withStack = false; // of functions that have no call under way
  std::chrono::milliseconds patience{0}; // of the sender
  std::vector<Step> path; // with the caller of the first call
  std::vector<uint64_t> calls;

  std::vector<char> encode() const;
  /// Throws FormatError.
  static WhereaboutsQuestion decode(const std::vector<char>& bytes);
};

/// A sentence for each of the calls, in their order. A value.
struct WhereaboutsAnswer {
  std::vector<std::string> texts;

  std::vector<char> encode() const;
  /// `calls`: how many were asked for. Throws FormatError.
  static WhereaboutsAnswer decode(const std::vector<char>& bytes, size_t calls);
};

} // namespace torchwire
