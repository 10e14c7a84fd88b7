// Memory that two processes share, without a name in any file system.
#pragma once

#include <cstddef>

namespace torchwire {

/// A mapped memory file whose size nobody can change any more, so that the other process cannot make this
/// one fault. It is gone when the last process that maps it ends.
/// A forked child does not map it. A value that is moved, not copied.
class MemoryFile {
 public:
  /// A new one, full of zeros. Throws std::runtime_error.
  static MemoryFile create(size_t size);
  /// One that another process sent: checks that it is of that size, sealed, and ordinary memory.
  /// Takes the descriptor in any case. Throws std::runtime_error.
  static MemoryFile adopt(int descriptor, size_t size);

  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&&) = delete;
  ~MemoryFile();

  char* data() const {
    return data_;
  }
  /// To send to the other process; -1 once it has been closed.
  int descriptor() const {
    return descriptor_;
  }
  /// The mapping stays.
  void closeDescriptor();

 private:
  MemoryFile(int descriptor, size_t size);

  int descriptor_;
  size_t size_;
  char* data_ = nullptr;
};

} // namespace torchwire
