// Whose answer a thread reads.
#pragma once

#include <optional>
#include <utility>

#include "backend/wire/roster.h"

namespace torchwire {

/// While one lives, the calling thread reads an answer of the worker: an error in it is the worker's. Bound to its thread.
class AnswerScope {
 public:
  /// None: no answer.
  explicit AnswerScope(std::optional<WorkerId> from) : outer_(std::exchange(current_, from)) {}
  ~AnswerScope() {
    current_ = outer_;
  }
  AnswerScope(const AnswerScope&) = delete;
  AnswerScope& operator=(const AnswerScope&) = delete;

  /// Of the calling thread; none where it reads no answer.
  static std::optional<WorkerId> current() {
    return current_;
  }

 private:
  static inline thread_local std::optional<WorkerId> current_;
  const std::optional<WorkerId> outer_;
};

} // namespace torchwire
