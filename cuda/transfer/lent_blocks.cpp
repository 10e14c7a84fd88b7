#include "cuda/transfer/lent_blocks.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace torchwire::cuda {
namespace {

/// Kept blocks have sizes that are powers of two, so that one fits many tensors.
size_t blockSize(size_t bytes) {
  return bytes <= LentBlocks::kLargestKept ? std::bit_ceil(bytes) : bytes;
}

} // namespace

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
    memory_.free(retired.block);
  }
}

std::optional<LentBlocks::Loan> LentBlocks::lend(
    WorkerId to, c10::DeviceIndex device, size_t bytes) {
  const Size size{device, blockSize(bytes)};
  std::vector<DeviceMemory::Block> free;
  {
    MutexLock lock(mutex_);
    if (auto loan = fromKept(to, size)) {
      return loan;
    }
    free = pastQuarantine();
    if (!hasRoom(device, size.second)) {
      return std::nullopt;
    }
    bytes_[device] += size.second;
  }
  for (const DeviceMemory::Block& block : free) {
    memory_.free(block);
  }
  Loan loan;
  try {
    loan.block = memory_.allocate(device, size.second);
  } catch (...) {
    MutexLock lock(mutex_);
    bytes_[device] -= size.second;
    throw;
  }
  loan.kept = size.second <= kLargestKept;
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
      return lendAs(to, std::move(loan));
    }
  }
  return std::nullopt;
}

bool LentBlocks::hasRoom(c10::DeviceIndex device, size_t bytes) const {
  const auto used = bytes_.find(device);
  return used == bytes_.end() || used->second == 0 || used->second + bytes <= kMostBytes;
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
    bytes_[retired->block.device] -= retired->block.bytes;
    blocks.push_back(std::move(retired->block));
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
    if (loan.kept) {
      kept_[{loan.block.device, loan.block.bytes}].push_back(std::move(loan));
      return;
    }
    block = std::move(loan.block);
    bytes_[block.device] -= block.bytes;
  }
  memory_.free(block);
}

void LentBlocks::peerLost(WorkerId peer) {
  const auto now = std::chrono::steady_clock::now();
  MutexLock lock(mutex_);
  for (auto lent = lent_.begin(); lent != lent_.end();) {
    if (lent->second.to == peer) {
      retired_.push_back({std::move(lent->second.loan.block), now});
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
  for (const auto& [device, bytes] : bytes_) {
    usage.bytes += bytes;
  }
  return usage;
}

} // namespace torchwire::cuda
