// A library calls a function of another through a slot, which the dynamic linker fills in; here the slots of Python's
// functions get others in their place. That reaches the functions whether Python is a shared library or part of the
// program, for which preloading a library would not do.
//
//     libtorch_python ── slot ──▶ checked ──▶ Python's function

#include "plugin/gil_watch.h"

#include <Python.h>

#include "backend/base/library_slots.h"
#include "backend/base/lock_rank.h"
#include "backend/base/log.h"
#include "backend/base/thread_role.h"

namespace torchwire {

using WatchedLibraries = std::map<std::string, std::vector<std::string>>;

namespace {

// ---- what is called in place of Python's functions ----------------------------------------------

void check(const char* action) {
  expectFree(action);
  expectUnlocked(action);
}

/// A function of Python's with a check before it.
template <auto function>
struct Checked;

template <typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct Checked<function> {
  // Volatile, or the compiler may put `function` in its place, whose slot in this library leads to call() by then.
  static inline Result (*volatile original)(Arguments...) = nullptr;
  static inline const char* action = nullptr;

  static Result call(Arguments... arguments) {
    check(action);
    return original(arguments...);
  }
};

template <auto function>
SlotReplacement replacementOf(const char* name, const char* action) {
  Checked<function>::original = function;
  Checked<function>::action = action;
  return {
      name, reinterpret_cast<const void*>(function),
      reinterpret_cast<void*>(&Checked<function>::call)};
}

// clang-format off
#define TORCHWIRE_WATCH(function, what) replacementOf<&(function)>(#function, what " (" #function ")"),

const auto& replacements() {
  static const std::vector<SlotReplacement> all = {
      TORCHWIRE_WATCH(PyGILState_Ensure, "taking the GIL")
      TORCHWIRE_WATCH(PyEval_RestoreThread, "taking the GIL")
      TORCHWIRE_WATCH(PyEval_AcquireThread, "taking the GIL")
      // pybind11's gil_scoped_acquire calls none of these where the thread holds the GIL already, but always one of the
      // next two, to find that out.
      TORCHWIRE_WATCH(PyGILState_GetThisThreadState, "taking the GIL")
#if PY_VERSION_HEX >= 0x030D0000
      TORCHWIRE_WATCH(PyThreadState_GetUnchecked, "taking the GIL")
#else
      TORCHWIRE_WATCH(_PyThreadState_UncheckedGet, "taking the GIL")
#endif
      TORCHWIRE_WATCH(_Py_Dealloc, "running a Python destructor")
  };
  return all;
}

#undef TORCHWIRE_WATCH
// clang-format on

// libtorch_cpu takes the GIL by functions of libtorch_python only, so that nothing is found there; should it ever be
// otherwise, it is.
bool isWatched(const LoadedImage& image) {
  return image.file().starts_with("libtorch") ||
      image.contains(reinterpret_cast<const void*>(&watchGil));
}

WatchedLibraries watch() {
  if (!kSlotsCanBeReplaced) {
    log(LogLevel::warning,
        "TORCHWIRE_CHECK_THREADS: the GIL is not watched, which is for x86-64 Linux only");
  }
  return replaceSlots(replacements(), isWatched);
}

} // namespace

const WatchedLibraries& watchGil() {
  static const WatchedLibraries watched = kThreadChecks ? watch() : WatchedLibraries();
  return watched;
}

} // namespace torchwire
