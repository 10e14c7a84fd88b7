// What a connection's bytes travel in: a TCP socket, or two rings in shared memory.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace torchwire {

/// How far a non-blocking operation came.
struct Progress {
  size_t bytes = 0;
  std::string error; // a sentence; empty: none
};

/// A two-way stream of bytes that never blocks. A write may run beside all else but another write, and
/// beside setInterest only where that does not name room to write. All but write() is loop-bound, as are
/// making and destroying one.
class Stream {
 public:
  virtual ~Stream() = default;

  /// From now on `ready` is called on the loop when what setInterest named may go on. It may destroy
  /// the stream.
  virtual void start(std::function<void()> ready) = 0;

  /// What the owner waits for: bytes to read, room to write.
  virtual void setInterest(bool reading, bool writing) = 0;

  /// Takes as much of the parts as there is room for. On any thread.
  virtual Progress write(const iovec* parts, size_t count) = 0;

  /// Gives what there is, at most `length` bytes. The end is an error.
  virtual Progress read(void* into, size_t length) = 0;

  /// How many bytes have come that cannot be read before others have.
  virtual size_t heldBack() const {
    return 0;
  }

  /// How long the rest of a message that has begun may take to go on. 0: for ever.
  virtual std::chrono::milliseconds stallPatience() const {
    return std::chrono::milliseconds(0);
  }
};

} // namespace torchwire
