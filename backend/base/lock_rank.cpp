#include "backend/base/lock_rank.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "backend/base/thread_role.h"

namespace torchwire {
namespace {

#define TORCHWIRE_LOCK_NAME(name) #name,
constexpr auto kNames = std::to_array<const char*>({TORCHWIRE_LOCK_RANKS(TORCHWIRE_LOCK_NAME)});
#undef TORCHWIRE_LOCK_NAME

constexpr LockRank kLastThatSendersMayHold = LockRank::rrefContext;

/// The locks that a thread holds, outermost first: each has a higher rank than the one before.
struct HeldLocks {
  std::array<LockRank, kNames.size()> ranks{};
  size_t count = 0;
};
constinit thread_local HeldLocks held;

std::string quoted(LockRank rank) {
  return std::string("'") + nameOf(rank) + "'";
}

std::string listOfHeld() {
  std::string list;
  for (size_t i = 0; i < held.count; ++i) {
    list += (i == 0 ? "" : ", ") + quoted(held.ranks[i]);
  }
  return list;
}

} // namespace

const char* nameOf(LockRank rank) {
  return kNames[static_cast<size_t>(rank)];
}

void pushLock(LockRank rank) {
  if (held.count > 0 && rank <= held.ranks[held.count - 1]) {
    breakRule(
        "taking lock " + quoted(rank) + " under " + listOfHeld() +
        ", which is against the order in backend/base/lock_rank.h");
  }
  if (isSending() && rank <= kLastThatSendersMayHold) {
    breakRule(
        "taking lock " + quoted(rank) +
        " inside a send, whose caller may hold locks of libtorch's");
  }
  held.ranks[held.count++] = rank;
}

// Locks may be released in another order than they were taken.
void popLock(LockRank rank) {
  auto* const end = held.ranks.data() + held.count;
  auto* const found = std::find(held.ranks.data(), end, rank);
  if (found != end) {
    std::copy(found + 1, end, found);
    --held.count;
  }
}

void checkUnlocked(const char* action) {
  if (held.count > 0) {
    breakRule(std::string(action) + " under lock " + listOfHeld());
  }
}

} // namespace torchwire
