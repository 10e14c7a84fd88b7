#include "cuda/transfer/lent_blocks.h"

#include <catch2/catch.hpp>

#include <vector>

#include "cuda/transfer/borrowed_blocks.h"
#include "test/unit/cuda/fake_device_memory.h"

using namespace torchwire;
using namespace torchwire::cuda;

namespace {

constexpr size_t kMiB = 1 << 20;

BorrowedBlocks::Offer offerOf(const LentBlocks::Loan& loan) {
  return {loan.id, loan.kept, loan.block.memoryHandle, loan.block.eventHandle};
}

} // namespace

TEST_CASE("a block that has come back is lent again", "[lent_blocks]") {
  FakeDeviceMemory memory;
  LentBlocks blocks(memory);
  const auto first = blocks.lend(1, 0, 3 * kMiB);
  REQUIRE(first);
  CHECK(first->kept);
  CHECK(first->block.bytes == 4 * kMiB);
  const auto second = blocks.lend(1, 0, 3 * kMiB);
  CHECK(second->id != first->id);
  blocks.giveBack(1, first->id);
  SECTION("also to another peer, and for less") {
    CHECK(blocks.lend(2, 0, kMiB)->id == first->id);
  }
  SECTION("but not for another device, or for more") {
    CHECK(blocks.lend(1, 1, kMiB)->id != first->id);
    CHECK(blocks.lend(1, 0, 5 * kMiB)->id != first->id);
  }
}

TEST_CASE("only who has borrowed a block gives it back, once", "[lent_blocks]") {
  FakeDeviceMemory memory;
  LentBlocks blocks(memory);
  const auto loan = blocks.lend(1, 0, kMiB);
  blocks.giveBack(2, loan->id);
  CHECK(blocks.usage().lent == 1);
  blocks.giveBack(1, loan->id);
  blocks.giveBack(1, loan->id);
  blocks.giveBack(1, 12345);
  CHECK(blocks.usage().lent == 0);
  CHECK(blocks.lend(1, 0, kMiB)->id == loan->id);
  CHECK(blocks.lend(1, 0, kMiB)->id != loan->id);
}

TEST_CASE("large blocks are freed when they have come back", "[lent_blocks]") {
  FakeDeviceMemory memory;
  LentBlocks blocks(memory);
  const auto loan = blocks.lend(1, 0, LentBlocks::kLargestKept + 1);
  CHECK_FALSE(loan->kept);
  CHECK(loan->block.bytes == LentBlocks::kLargestKept + 1);
  blocks.giveBack(1, loan->id);
  CHECK(memory.allocated.empty());
  CHECK(blocks.usage().bytes == 0);
}

TEST_CASE("no more than the bound is lent of a device, but for one block", "[lent_blocks]") {
  FakeDeviceMemory memory;
  LentBlocks blocks(memory);
  const auto huge = blocks.lend(1, 0, 2 * LentBlocks::kMostBytes);
  REQUIRE(huge);
  CHECK_FALSE(blocks.lend(1, 0, 1));
  CHECK(blocks.lend(1, 1, 1)); // another device's
  blocks.giveBack(1, huge->id);
  for (size_t lent = 0; lent < LentBlocks::kMostBytes; lent += LentBlocks::kLargestKept) {
    CHECK(blocks.lend(1, 0, LentBlocks::kLargestKept));
  }
  CHECK_FALSE(blocks.lend(1, 0, 1));
}

TEST_CASE("what is kept and idle takes no room of what is lent", "[lent_blocks]") {
  FakeDeviceMemory memory;
  LentBlocks blocks(memory);
  blocks.giveBack(1, blocks.lend(1, 0, 1)->id);
  CHECK(blocks.usage().bytes == LentBlocks::kLeastBytes);
  const auto huge = blocks.lend(1, 0, LentBlocks::kMostBytes + 1);
  REQUIRE(huge);
  blocks.giveBack(1, huge->id);
  SECTION("and only so much of it stays") {
    std::vector<LentBlocks::Loan> loans;
    for (size_t lent = 0; lent < LentBlocks::kMostBytes; lent += LentBlocks::kLargestKept) {
      loans.push_back(*blocks.lend(1, 0, LentBlocks::kLargestKept));
    }
    CHECK_FALSE(blocks.lend(1, 0, LentBlocks::kLargestKept));
    for (const auto& loan : loans) {
      blocks.giveBack(1, loan.id);
    }
    CHECK(blocks.usage().bytes <= LentBlocks::kMostKept);
    CHECK(blocks.lend(1, 0, 4 * LentBlocks::kMostBytes));
  }
}

TEST_CASE("blocks are freed where the owner says", "[lent_blocks]") {
  FakeDeviceMemory memory;
  std::vector<DeviceMemory::Block> released;
  {
    LentBlocks blocks(memory, [&](const auto& block) { released.push_back(block); });
    blocks.giveBack(1, blocks.lend(1, 0, LentBlocks::kLargestKept + 1)->id);
    CHECK(memory.allocated.size() == 1);
  }
  REQUIRE(released.size() == 1);
  CHECK(released[0].bytes == LentBlocks::kLargestKept + 1);
}

TEST_CASE("a device without memory throws and takes no room", "[lent_blocks]") {
  FakeDeviceMemory memory;
  LentBlocks blocks(memory);
  memory.isFull = true;
  CHECK_THROWS_WITH(blocks.lend(1, 0, kMiB), "out of memory");
  CHECK(blocks.usage().bytes == 0);
  memory.isFull = false;
  CHECK(blocks.lend(1, 0, kMiB));
}

TEST_CASE("what a lost peer may still read stays as it is", "[lent_blocks]") {
  FakeDeviceMemory memory;
  {
    LentBlocks blocks(memory);
    const auto lost = blocks.lend(1, 0, kMiB);
    const auto other = blocks.lend(2, 0, kMiB);
    blocks.peerLost(1);
    blocks.giveBack(1, lost->id); // of a connection that is gone
    CHECK(blocks.usage().lent == 1);
    CHECK(blocks.lend(1, 0, kMiB)->id != lost->id);
    CHECK(memory.allocated.size() == 3);
    blocks.giveBack(2, other->id);
    CHECK(blocks.lend(1, 0, kMiB)->id == other->id);
  }
  CHECK(memory.allocated.empty());
}

TEST_CASE("a block of a worker that was restarted is another", "[lent_blocks]") {
  FakeDeviceMemory memory;
  LentBlocks former(memory);
  LentBlocks restarted(memory);
  BorrowedBlocks borrowed(memory);
  const auto before = offerOf(*former.lend(1, 0, kMiB));
  const auto after = offerOf(*restarted.lend(1, 0, kMiB));
  CHECK(borrowed.open(0, before, 0)->data != borrowed.open(0, after, 0)->data);
  restarted.giveBack(1, before.id); // by a peer that has read it late
  CHECK(restarted.usage().lent == 1);
}

TEST_CASE("blocks that their owner keeps stay open", "[lent_blocks]") {
  FakeDeviceMemory memory;
  LentBlocks lent(memory);
  BorrowedBlocks borrowed(memory);
  const auto kept = offerOf(*lent.lend(1, 0, kMiB));
  const auto large = offerOf(*lent.lend(1, 0, LentBlocks::kLargestKept + 1));
  auto view = borrowed.open(0, kept, 0);
  CHECK(borrowed.open(0, kept, 0) == view);
  CHECK(borrowed.open(0, kept, 1) != view); // another device sees it elsewhere
  borrowed.open(0, large, 0);
  CHECK(memory.opened.size() == 1); // the large one has been closed
  borrowed.peerLost(0);
  CHECK(memory.opened.size() == 1); // as long as somebody copies from it
  view.reset();
  CHECK(memory.opened.empty());
}
