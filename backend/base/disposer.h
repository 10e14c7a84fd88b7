// Destroys what Python owns, or may own, on a thread that may wait for the GIL.
#pragma once

#include <memory>
#include <utility>

#include "backend/base/task.h"
#include "backend/base/thread_pool.h"
#include "backend/base/thread_role.h"

namespace torchwire {

/// Tensors that Python knows, and memory that it owns, take the GIL when the last or the last but one of their
/// references goes, and may run destructors of the user's. What is kept here is destroyed at once where the last
/// pointer to it goes on a free thread, and on the pool where that thread sends or delivers. Thread-safe.
class Disposer {
 public:
  explicit Disposer(std::shared_ptr<ThreadPool> pool) : pool_(std::move(pool)) {}

  template <typename T>
  std::shared_ptr<void> keep(T value) const {
    return std::shared_ptr<T>(new T(std::move(value)), [pool = pool_](T* last) {
      Task end([owned = std::unique_ptr<T>(last)] {});
      if (!isFree()) {
        pool->run(std::move(end)); // where it has ended, there is nothing left but to end it here
      }
    });
  }

 private:
  const std::shared_ptr<ThreadPool> pool_;
};

} // namespace torchwire
