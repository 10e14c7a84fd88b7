#include "backend/transport/memory_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace torchwire {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), "cannot " + what + " shared memory");
}

/// What is wrong with memory that a peer sent, or null.
const char* objectionTo(int descriptor, size_t size) {
  struct stat status{};
  struct statfs system{};
  if (fstat(descriptor, &status) != 0 || fstatfs(descriptor, &system) != 0) {
    return "cannot be looked at";
  }
  if (system.f_type != TMPFS_MAGIC) { // huge pages, say, that this process may not have
    return "is not an ordinary memory file";
  }
  if (static_cast<size_t>(status.st_size) != size) {
    return "has the wrong size";
  }
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || (seals & F_SEAL_WRITE) != 0) {
    return "is not sealed against changes of its size";
  }
  return nullptr;
}

} // namespace

MemoryFile::MemoryFile(int descriptor, size_t size) : descriptor_(descriptor), size_(size) {}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      data_(std::exchange(other.data_, nullptr)) {}

MemoryFile::~MemoryFile() {
  closeDescriptor();
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

void MemoryFile::closeDescriptor() {
  if (descriptor_ >= 0) {
    close(std::exchange(descriptor_, -1));
  }
}

MemoryFile MemoryFile::create(size_t size) {
  MemoryFile file(memfd_create("torchwire", MFD_CLOEXEC | MFD_ALLOW_SEALING), size);
  if (file.descriptor_ < 0 || ftruncate(file.descriptor_, static_cast<off_t>(size)) != 0 ||
      fcntl(file.descriptor_, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    fail("make");
  }
  return adopt(std::exchange(file.descriptor_, -1), size);
}

MemoryFile MemoryFile::adopt(int descriptor, size_t size) {
  MemoryFile file(descriptor, size);
  if (const char* objection = objectionTo(descriptor, size)) {
    throw std::runtime_error(std::string("the memory that a peer shares ") + objection);
  }
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) {
    fail("map");
  }
  madvise(data, size, MADV_DONTFORK); // what a forked child wrote there, the peer would read
  file.data_ = static_cast<char*>(data);
  return file;
}

} // namespace torchwire
