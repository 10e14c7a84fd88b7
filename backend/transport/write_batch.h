// Small writes that go out together.
#pragma once

#include <memory>
#include <vector>

namespace torchwire {

class MessageStream;

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
  void add(std::shared_ptr<MessageStream> stream);
  /// Lets out what has been kept back.
  void flush();

 private:
  std::vector<std::shared_ptr<MessageStream>> streams_;
};

} // namespace torchwire
