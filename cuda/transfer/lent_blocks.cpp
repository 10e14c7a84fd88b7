#include "cuda/transfer/lent_blocks.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "backend/base/random.h"

namespace torchwire::cuda {
namespace {

/// Kept blocks have sizes that are powers of two, so that one fits many tensors.
size_t blockSize(size_t bytes) {
  const size_t size = std::max(bytes, LentBlocks::kLeastBytes);
  return size <= LentBlocks::kLargestKept ? std::bit_ceil(size) : size;
}

} // namespace

LentBlocks::LentBlocks(DeviceMemory& memory, Release release)
    : memory_(memory),
      release_(
          release ? std::move(release)
                  : [&memory](const DeviceMemory::Block& block) { memory.free(block); }),
      // What a peer gives back of the blocks of this worker before it was restarted must name none of the new ones.
      lastId_(randomNumber()) {}

LentBlocks::~LentBlocks() {
  for (const auto& [id, lent] : lent_) {
    memory_.free(lent.loan.block);
  }
  for (const auto& [size, loans] : kept_) {
    for (const Loan& loan : loans) {
      memory_.free(loan.block);
    }
  }
  for (const Retired& retired : retired_) {
    memory_.free(retired.loan.block);
  }
}

std::optional<LentBlocks::Loan> LentBlocks::lend(
    WorkerId to, c10::DeviceIndex device, size_t bytes) {
  const Size size{device, blockSize(bytes)};
  std::vector<DeviceMemory::Block> free;
  bool hasRoom = false;
  Loan loan;
  {
    MutexLock lock(mutex_);
    if (auto kept = fromKept(to, size)) {
      return kept;
    }
    free = pastQuarantine();
    hasRoom = reserve(size);
    loan.kept =
        hasRoom && size.second <= kLargestKept && toBeKept_[device] + size.second <= kMostKept;
    toBeKept_[device] += loan.kept ? size.second : 0;
  }
  for (const DeviceMemory::Block& block : free) {
    release_(block);
  }
  if (!hasRoom) {
    return std::nullopt;
  }
  try {
    loan.block = memory_.allocate(device, size.second);
  } catch (...) {
    MutexLock lock(mutex_);
    inUse_[device] -= size.second;
    toBeKept_[device] -= loan.kept ? size.second : 0;
    throw;
  }
  MutexLock lock(mutex_);
  loan.id = ++lastId_;
  return lendAs(to, std::move(loan));
}

std::optional<LentBlocks::Loan> LentBlocks::fromKept(WorkerId to, const Size& size) {
  // A larger one will do: it has been paid for.
  for (auto found = kept_.lower_bound(size); found != kept_.end(); ++found) {
    auto& [ofSize, loans] = *found;
    if (ofSize.first != size.first) {
      break;
    }
    if (!loans.empty()) {
      Loan loan = std::move(loans.back());
      loans.pop_back();
      inUse_[size.first] += loan.block.bytes;
      return lendAs(to, std::move(loan));
    }
  }
  return std::nullopt;
}

bool LentBlocks::reserve(const Size& size) {
  size_t& inUse = inUse_[size.first];
  if (inUse != 0 && inUse + size.second > kMostBytes) {
    return false;
  }
  inUse += size.second;
  return true;
}

LentBlocks::Loan LentBlocks::lendAs(WorkerId to, Loan loan) {
  lent_.insert_or_assign(loan.id, Lent{to, loan});
  return loan;
}

std::vector<DeviceMemory::Block> LentBlocks::pastQuarantine() {
  const auto since = std::chrono::steady_clock::now() - kQuarantine;
  const auto fresh = std::partition(retired_.begin(), retired_.end(), [&](const Retired& retired) {
    return retired.since <= since;
  });
  std::vector<DeviceMemory::Block> blocks;
  for (auto retired = retired_.begin(); retired != fresh; ++retired) {
    DeviceMemory::Block& block = retired->loan.block;
    inUse_[block.device] -= block.bytes;
    toBeKept_[block.device] -= retired->loan.kept ? block.bytes : 0;
    blocks.push_back(std::move(block));
  }
  retired_.erase(retired_.begin(), fresh);
  return blocks;
}

void LentBlocks::giveBack(WorkerId from, uint64_t id) {
  DeviceMemory::Block block;
  {
    MutexLock lock(mutex_);
    const auto found = lent_.find(id);
    if (found == lent_.end() || found->second.to != from) {
      return;
    }
    Loan loan = std::move(found->second.loan);
    lent_.erase(found);
    inUse_[loan.block.device] -= loan.block.bytes;
    if (loan.kept) {
      kept_[{loan.block.device, loan.block.bytes}].push_back(std::move(loan));
      return;
    }
    block = std::move(loan.block);
  }
  release_(block);
}

void LentBlocks::peerLost(WorkerId peer) {
  const auto now = std::chrono::steady_clock::now();
  MutexLock lock(mutex_);
  for (auto lent = lent_.begin(); lent != lent_.end();) {
    if (lent->second.to == peer) {
      retired_.push_back({std::move(lent->second.loan), now});
      lent = lent_.erase(lent);
    } else {
      ++lent;
    }
  }
}

LentBlocks::Usage LentBlocks::usage() const {
  MutexLock lock(mutex_);
  Usage usage;
  usage.lent = lent_.size();
  for (const auto& [device, bytes] : inUse_) {
    usage.bytes += bytes;
  }
  for (const auto& [size, loans] : kept_) {
    usage.bytes += size.second * loans.size();
  }
  return usage;
}

} // namespace torchwire::cuda
