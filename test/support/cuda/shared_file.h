// A nameless file in memory, which another process of the same user can open while this one has it open.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace torchwire::cuda_stand_in {

/// Where the file is: what a handle of IPC has in it. A value; plain bytes.
struct SharedFileName {
  int32_t process;
  int32_t descriptor;
  uint64_t inode; // descriptors are used again
  uint64_t size;
};

/// Owns the descriptor.
class SharedFile {
 public:
  SharedFile() = default;
  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&& other) noexcept;
  ~SharedFile();

  /// A new file of zeros; none if there is no memory, or no descriptor, for it.
  static SharedFile make(size_t size);
  /// That of another process; none if it has gone.
  static SharedFile open(const SharedFileName& name);

  explicit operator bool() const {
    return descriptor_ >= 0;
  }
  size_t size() const {
    return size_;
  }
  SharedFileName name() const;

  /// The file at an address that the kernel chooses, or null. Who asks unmaps it.
  char* map(int protection) const;

 private:
  SharedFile(int descriptor, size_t size);

  int descriptor_ = -1;
  size_t size_ = 0;
};

} // namespace torchwire::cuda_stand_in
