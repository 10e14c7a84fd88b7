// What takes back what was done for a message that its receiver never got.
#pragma once

#include <functional>
#include <utility>

#include "backend/base/error.h"
#include "backend/base/guarded.h"

namespace torchwire {

/// Undoes what has been done for a message or its frame: called where it is known that the peer has not received it, and
/// never will. Perhaps not at once, on any thread, without locks, more than once, and when the worker's agent is gone.
/// Does nothing where nothing has been done, and throws nothing.
class Undo {
 public:
  Undo() = default;
  explicit Undo(std::function<void()> undo) : undo_(std::move(undo)) {}

  explicit operator bool() const {
    return static_cast<bool>(undo_);
  }
  void operator()() const noexcept {
    if (undo_) {
      guarded("what was done for a message that nobody has received", undo_);
    }
  }
  /// At the end of a call.
  void unlessSent(const Error& failure) const noexcept {
    if (failure && failure.executed() == Executed::no) {
      (*this)();
    }
  }

 private:
  std::function<void()> undo_;
};

} // namespace torchwire
