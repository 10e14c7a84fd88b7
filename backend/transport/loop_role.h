// The role of whoever runs a loop.
#pragma once

#include "backend/base/thread_role.h"
#include "backend/transport/loop.h"

namespace torchwire {

/// Gives the calling thread a loop's role while it lives. What runs meanwhile is a delivery.
class Loop::Role {
 public:
  /// Waits for the role, or takes over the lock that the thread has got.
  explicit Role(Loop& loop) : Role(loop, std::unique_lock(loop.role_)) {}
  Role(Loop& loop, std::unique_lock<std::mutex> lock) : loop_(loop), lock_(std::move(lock)) {
    loop_.threadId_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  ~Role() {
    loop_.threadId_.store(std::thread::id(), std::memory_order_relaxed);
  }
  Role(const Role&) = delete;
  Role& operator=(const Role&) = delete;

 private:
  Loop& loop_;
  const std::unique_lock<std::mutex> lock_; // goes after the destructor has run
  const DeliverScope scope_;
};

} // namespace torchwire
