// Several answers to wait for at once.
#pragma once

#include <functional>
#include <utility>

#include "backend/base/annotations.h"
#include "backend/base/error.h"

namespace torchwire {

/// Puts together what several answers bring, and hands it over exactly once, when the last one is in. Whoever makes
/// it counts as one that answers, so that it cannot end before all have been asked. Held by shared_ptr. Thread-safe.
template <typename Result>
class ResponseAggregator {
 public:
  /// Gets the first error that arrived, and all results.
  using Done = std::function<void(const Error&, Result)>;

  explicit ResponseAggregator(Done done) : done_(std::move(done)) {}

  /// One more answer to wait for.
  void expect() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++awaited_;
  }

  /// An answer has come (or the maker has asked everybody). `add` puts it into the result.
  template <typename Add>
  void arrived(const Error& error, Add&& add) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (error && !error_) {
        error_ = error;
      }
      std::forward<Add>(add)(result_);
      if (--awaited_ > 0) {
        return;
      }
    }
    done_(error_, std::move(result_)); // nobody else is left
  }

 private:
  const Done done_;
  Mutex mutex_{LockRank::responseAggregator};
  size_t awaited_ = 1;
  Error error_;
  Result result_;
};

} // namespace torchwire
