// A piece of memory that CUDA knows of: a device's, another process's, or pinned memory of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "test/support/cuda/shared_file.h"

namespace torchwire::cuda_stand_in {

/// A device's memory is mapped twice: at the address that the program sees, where a touch by the CPU faults, and at
/// another, where the streams read and write it. Unmapped with the last owner: work on a stream is one.
class MemoryBlock {
 public:
  enum class Kind {
    kDevice, // of cudaMalloc
    kImported, // of cudaIpcOpenMemHandle
    kPinned, // of cudaHostAlloc
    kRegistered // of cudaHostRegister; not unmapped
  };

  /// Full of 0xFF. Null if there is no memory.
  static std::shared_ptr<MemoryBlock> ofDevice(int device, size_t size);
  /// Null if the other process has freed it. `device` is this process's number, or -1 if it does not see the device.
  static std::shared_ptr<MemoryBlock> imported(int device, const SharedFileName& name);
  /// The same, but other memory: to test what becomes of it.
  static std::shared_ptr<MemoryBlock> mistaken(int device, const SharedFileName& name);
  static std::shared_ptr<MemoryBlock> pinned(size_t size);
  static std::shared_ptr<MemoryBlock> registered(void* base, size_t size);

  MemoryBlock(Kind kind, int device, size_t size);
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;
  ~MemoryBlock();

  Kind kind() const {
    return kind_;
  }
  bool isOfDevice() const {
    return kind_ == Kind::kDevice || kind_ == Kind::kImported;
  }
  int device() const {
    return device_;
  }
  size_t size() const {
    return size_;
  }
  /// What the program sees.
  char* base() const {
    return base_;
  }
  /// Where this process can read and write what is at `address` for the program.
  char* bytesAt(const void* address) const {
    return bytes_ + (static_cast<const char*>(address) - base_);
  }
  bool contains(const void* address, size_t size) const {
    const size_t offset = static_cast<const char*>(address) - base_;
    return offset <= size_ && size <= size_ - offset;
  }
  /// For a handle; only of a device's memory.
  SharedFileName fileName() const {
    return file_.name();
  }
  /// Whoever still reads it sees 0xFF.
  void poison();

 private:
  static std::shared_ptr<MemoryBlock> mapped(Kind kind, int device, SharedFile file);

  Kind kind_;
  int device_;
  size_t size_;
  char* base_ = nullptr;
  char* bytes_ = nullptr;
  SharedFile file_;
};

} // namespace torchwire::cuda_stand_in
