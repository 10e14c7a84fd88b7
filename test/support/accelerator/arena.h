// Memory that shows who uses it at the wrong time: a device's, or pinned memory of the host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace torchwire::accelerator {

class Arena;
class WorkStream;

/// An allocation. It outlives its memory's use: a block is taken again, never destroyed.
struct Block {
  Arena* arena;
  void* address; // what tensors carry
  std::byte* store; // where the bytes are
  size_t size; // of its class, at least what was asked for
  std::mutex mutex;
  std::set<WorkStream*>
      streams; // those that have to come to the point of the free: the allocating one, and recorded ones
  std::atomic<size_t> awaited{0}; // once it is freed: streams that have not come there
};

/// Fresh memory is full of poison (bytes 0xFF: NaN, -1), and so is memory that was freed, from the moment at which all
/// streams that are known to use it have come to the free. It then stays in quarantine for a while; what somebody wrote
/// there meanwhile is counted.
/// Where the host may not touch it, addresses are only names: they are reserved without access, so that a touch faults,
/// and the bytes are elsewhere. Memory of the system is taken with the first allocation. Thread-safe.
class Arena {
 public:
  enum class Access { device, host };

  explicit Arena(Access access) : access_(access) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Null if there is no room. `stream`: the allocating one, or null.
  Block* allocate(size_t bytes, WorkStream* stream);
  /// The block must not be freed before this stream has done what it has to do until then.
  static void use(Block& block, WorkStream& stream);
  /// Frees it once all its streams have come here; nobody waits.
  void free(Block* block);

  bool contains(const void* address) const;
  /// Where the bytes of an address are. Null if it is none of these.
  std::byte* store(const void* address) const;
  /// The block that the address lies in; null if it lies in none, or in one that was freed.
  Block* find(const void* address) const;

  size_t allocatedBytes() const;
  /// Blocks in which somebody wrote while they were in quarantine.
  size_t writesAfterFree() const;

 private:
  void reserve();
  Block* takeFreed(size_t size);
  Block* takeFresh(size_t size);
  void quarantine(Block* block);
  static size_t sizeClassOf(size_t bytes);
  static bool isPoison(const Block& block);

  const Access access_;
  mutable std::mutex mutex_;
  std::byte* names_ = nullptr;
  std::byte* bytes_ = nullptr;
  size_t used_ = 0; // how far blocks have been cut off
  size_t allocatedBytes_ = 0;
  size_t quarantinedBytes_ = 0;
  size_t writesAfterFree_ = 0; // in blocks that have left the quarantine
  std::map<std::byte*, Block*> allocated_; // by address
  std::deque<Block*> quarantined_;
  std::map<size_t, std::vector<Block*>> freed_; // by size
};

} // namespace torchwire::accelerator
