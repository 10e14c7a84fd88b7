// What libtorch writes of stores.
#pragma once

namespace torchwire {

/// While one lives, libtorch writes no warnings of stores on this thread. It writes one, with a stack of some 30 frames,
/// whenever a store does not answer, and then throws: who has called the store says what there is to say. Other threads,
/// and the program's settings, are not touched. Has an effect on x86-64 Linux only, and after install().
class QuietStore {
 public:
  /// Has libtorch ask whether to write. Takes a millisecond, the first time. Thread-safe.
  static void install();

  QuietStore();
  ~QuietStore();
  QuietStore(const QuietStore&) = delete;
  QuietStore& operator=(const QuietStore&) = delete;
};

} // namespace torchwire
