#include "test/support/cuda/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace torchwire::cuda_stand_in {

SharedFile::SharedFile(int descriptor, size_t size) : descriptor_(descriptor), size_(size) {}

SharedFile::SharedFile(SharedFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

SharedFile& SharedFile::operator=(SharedFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

SharedFile::~SharedFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

SharedFile SharedFile::make(size_t size) {
  SharedFile file(::memfd_create("cuda-stand-in", MFD_CLOEXEC), size);
  if (file && ::ftruncate(file.descriptor_, static_cast<off_t>(size)) != 0) {
    return {};
  }
  return file;
}

SharedFile SharedFile::open(const SharedFileName& name) {
  const std::string path =
      "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.descriptor);
  SharedFile file(::open(path.c_str(), O_RDWR | O_CLOEXEC), name.size);
  struct stat found{};
  if (!file || ::fstat(file.descriptor_, &found) != 0 || found.st_ino != name.inode ||
      static_cast<uint64_t>(found.st_size) != name.size) {
    return {};
  }
  return file;
}

SharedFileName SharedFile::name() const {
  struct stat found{};
  ::fstat(descriptor_, &found);
  return {static_cast<int32_t>(::getpid()), descriptor_, found.st_ino, size_};
}

char* SharedFile::map(int protection) const {
  void* const address = ::mmap(nullptr, size_, protection, MAP_SHARED, descriptor_, 0);
  return address == MAP_FAILED ? nullptr : static_cast<char*>(address);
}

} // namespace torchwire::cuda_stand_in
