#include "test/support/cuda/memory_block.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "test/support/cuda/device.h"
#include "test/support/cuda/settings.h"

namespace torchwire::cuda_stand_in {
namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr int kPoison = 0xFF; // NaN, -1
constexpr int kMistake = 0x5A;

} // namespace

MemoryBlock::MemoryBlock(Kind kind, int device, size_t size)
    : kind_(kind), device_(device), size_(size) {}

MemoryBlock::~MemoryBlock() {
  if (kind_ == Kind::kRegistered) {
    return;
  }
  if (base_ != nullptr) {
    ::munmap(base_, size_);
  }
  if (bytes_ != nullptr && bytes_ != base_) {
    ::munmap(bytes_, size_);
  }
  if (kind_ == Kind::kDevice) {
    giveMemory(device_, size_);
  }
}

std::shared_ptr<MemoryBlock> MemoryBlock::mapped(Kind kind, int device, SharedFile file) {
  auto block = std::make_shared<MemoryBlock>(kind, device, file ? file.size() : 0);
  if (!file) {
    return nullptr;
  }
  block->base_ = file.map(settings().hostAccess ? kReadWrite : PROT_NONE);
  block->bytes_ = file.map(kReadWrite);
  // The other process goes on owning the file; the mappings keep the memory.
  if (kind == Kind::kDevice) {
    block->file_ = std::move(file);
  }
  return block->base_ != nullptr && block->bytes_ != nullptr ? block : nullptr;
}

std::shared_ptr<MemoryBlock> MemoryBlock::ofDevice(int device, size_t size) {
  if (!takeMemory(device, size)) {
    return nullptr;
  }
  SharedFile file = SharedFile::make(size);
  if (!file) {
    giveMemory(device, size);
    return nullptr;
  }
  auto block = mapped(Kind::kDevice, device, std::move(file));
  if (block != nullptr) {
    block->poison();
  }
  return block;
}

std::shared_ptr<MemoryBlock> MemoryBlock::imported(int device, const SharedFileName& name) {
  return mapped(Kind::kImported, device, SharedFile::open(name));
}

std::shared_ptr<MemoryBlock> MemoryBlock::mistaken(int device, const SharedFileName& name) {
  auto block = mapped(Kind::kImported, device, SharedFile::make(name.size));
  if (block != nullptr) {
    std::memset(block->bytes_, kMistake, block->size_);
  }
  return block;
}

std::shared_ptr<MemoryBlock> MemoryBlock::pinned(size_t size) {
  void* const address = ::mmap(nullptr, size, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return nullptr;
  }
  auto block = std::make_shared<MemoryBlock>(Kind::kPinned, -1, size);
  block->base_ = block->bytes_ = static_cast<char*>(address);
  block->poison();
  return block;
}

std::shared_ptr<MemoryBlock> MemoryBlock::registered(void* base, size_t size) {
  auto block = std::make_shared<MemoryBlock>(Kind::kRegistered, -1, size);
  block->base_ = block->bytes_ = static_cast<char*>(base);
  return block;
}

void MemoryBlock::poison() {
  std::memset(bytes_, kPoison, size_);
}

} // namespace torchwire::cuda_stand_in
