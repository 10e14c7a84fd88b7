// The RRefs that the program pickles to send them: the agent is told of each, and takes those back that are not sent.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <exception>

#include "backend/agent/agent.h"

namespace torchwire {

/// The RRefs that this thread pickles while it lives. Nests. To be used from C++, with the GIL: what a handler of a signal
/// raises comes between two instructions of Python's.
class PickledRRefs {
 public:
  PickledRRefs();
  ~PickledRRefs();
  PickledRRefs(const PickledRRefs&) = delete;
  PickledRRefs& operator=(const PickledRRefs&) = delete;

  /// What `pickle` returns. If it throws, those are withdrawn that it has pickled.
  template <typename Pickle>
  static auto withdrawnIfRaised(Pickle pickle) {
    PickledRRefs rrefs;
    try {
      return pickle();
    } catch (const std::exception&) { // not what ends a thread, which has no GIL
      rrefs.withdraw();
      throw;
    }
  }

  /// The thread's latest are part of what the next outer one is about, if there is one.
  static void handOn();

 private:
  /// There will be no message with those that are in none yet. Throws nothing.
  void withdraw();

  friend void notePickled(const pybind11::object& serialized);
  PickledRRefs* const outer_;
  std::vector<PassedForks::Fork> forks_;
};

/// Takes down that an RRef has just been pickled, by what PyRRef._serialize() has returned.
void notePickled(const pybind11::object& serialized);

void bindPickledRRefs(pybind11::module_& module);

} // namespace torchwire
