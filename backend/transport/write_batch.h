// Small writes that go out together.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace torchwire {

/// Where writes are kept back.
class BatchedWrites {
 public:
  virtual ~BatchedWrites() = default;
  /// Lets them out. On the thread that has written them.
  virtual void flush() = 0;
};

/// While it lives, small messages that the calling thread writes are kept back, and go out together at its end, or before
/// a large one: TensorPipe writes two for each frame, which would be two system calls, and two records where the stream is
/// encrypted. No more than a few are kept back, since the thread may have to write for many others. Nests: then the
/// outermost counts.
class WriteBatch {
 public:
  WriteBatch();
  ~WriteBatch();
  WriteBatch(const WriteBatch&) = delete;
  WriteBatch& operator=(const WriteBatch&) = delete;

  /// Of messages that are kept back.
  static constexpr size_t kMost = 8;

  /// The calling thread's; or none.
  static WriteBatch* current();
  /// A message is about to be kept back there.
  void add(std::shared_ptr<BatchedWrites> writes);
  bool isFull() const {
    return messages_ >= kMost;
  }
  /// Lets out what has been kept back.
  void flush();

 private:
  std::vector<std::shared_ptr<BatchedWrites>> kept_;
  size_t messages_ = 0;
};

} // namespace torchwire
