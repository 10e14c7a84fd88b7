// The switch of the checks of threads and locks, and what happens to who breaks a rule.
//
// The rules are in docs/threads.md; thread_role.h and lock_rank.h check them. The checks are in every build, so that
// what is tested is what users run, and are off unless the environment variable TORCHWIRE_CHECK_THREADS is set.
#pragma once

#include <string>

namespace torchwire {

/// Whether TORCHWIRE_CHECK_THREADS is set, to something else than 0. Read once, when the library is loaded.
extern const bool kThreadChecks;

/// Writes the sentence, the thread's name and its stack to standard error, and aborts. Thread-safe.
[[noreturn]] void breakRule(const std::string& sentence);

} // namespace torchwire
