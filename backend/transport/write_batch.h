// Small writes that go out together.
#pragma once

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
/// encrypted. Nests: then the outermost counts.
class WriteBatch {
 public:
  WriteBatch();
  ~WriteBatch();
  WriteBatch(const WriteBatch&) = delete;
  WriteBatch& operator=(const WriteBatch&) = delete;

  /// The calling thread's; or none.
  static WriteBatch* current();
  void add(std::shared_ptr<BatchedWrites> writes);
  /// Lets out what has been kept back.
  void flush();

 private:
  std::vector<std::shared_ptr<BatchedWrites>> kept_;
};

} // namespace torchwire
