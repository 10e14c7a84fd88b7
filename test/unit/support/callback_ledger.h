// Callbacks that fail the test when they are dropped or called twice.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/link/link.h"
#include "test/unit/support/notifier.h"

namespace torchwire {

/// What became of one callback. Thread-safe.
class CallbackNote {
 public:
  CallbackNote(std::string what, Notifier& notifier)
      : what_(std::move(what)), notifier_(notifier) {}

  void add(const Error& error) EXCLUDES(mutex_);
  int calls() const EXCLUDES(mutex_);
  bool called() const {
    return calls() > 0;
  }
  bool succeeded() const {
    return called() && !error();
  }
  /// Of the first call.
  Error error() const EXCLUDES(mutex_);
  const std::string& what() const {
    return what_;
  }

 private:
  const std::string what_;
  Notifier& notifier_;
  mutable Mutex mutex_{LockRank::test};
  int calls_ GUARDED_BY(mutex_) = 0;
  Error error_ GUARDED_BY(mutex_);
};

/// Hands out callbacks and expects that each has been called exactly once when it is destroyed itself:
/// declare it before all that may hold its callbacks. Catch2's assertions belong to the test's
/// thread, so the callbacks only take notes. Thread-safe.
class CallbackLedger {
 public:
  CallbackLedger() = default;
  ~CallbackLedger();
  CallbackLedger(const CallbackLedger&) = delete;
  CallbackLedger& operator=(const CallbackLedger&) = delete;

  /// A new entry, to be read by the test and called through expect() or by hand.
  CallbackNote& note(std::string what) EXCLUDES(mutex_);

  /// A callback that notes its error in a new entry.
  Link::Sent expect(std::string what) {
    return expect(note(std::move(what)));
  }
  static Link::Sent expect(CallbackNote& note) {
    return [&note](const Error& error) { note.add(error); };
  }

  bool allCalled() const EXCLUDES(mutex_);
  bool waitForAll() {
    return notifier_.waitUntil([this] { return allCalled(); });
  }

  /// A sentence for each callback that was not called exactly once.
  std::vector<std::string> complaints() const EXCLUDES(mutex_);
  /// Expects nothing of the callbacks so far.
  void forgive() EXCLUDES(mutex_);

  /// Rings at every callback.
  Notifier& notifier() {
    return notifier_;
  }

 private:
  Notifier notifier_;
  mutable Mutex mutex_{LockRank::testOuter};
  std::deque<CallbackNote> notes_ GUARDED_BY(mutex_);
  size_t firstExpected_ GUARDED_BY(mutex_) = 0;
};

} // namespace torchwire
