// What a child that is forked from this process must know, and must not keep.
#pragma once

#include <atomic>
#include <cstdint>

namespace torchwire {

namespace detail {
extern std::atomic<uint64_t> forks;
} // namespace detail

/// How many forks lie between the first process and this one. An object that remembers the number of its making can tell
/// whether it is in a child by now, where no other thread exists and any lock may be held for ever. Thread-safe.
inline uint64_t forkGeneration() {
  return detail::forks.load(std::memory_order_relaxed);
}

/// Ends this process if it has been forked since the generation was that, by a function or a callback that torchwire ran: what
/// comes next is the parent's to do, and the thread has nothing else to do in the child. Takes no lock.
void endIfForkedSince(uint64_t generation);

/// From now on a forked child closes this descriptor before fork() returns in it: the other end of a connection would
/// otherwise not see that this process has ended while the child lives. Thread-safe.
void closeInForkedChild(int descriptor);
/// Takes that back. To be called before the descriptor is closed, since its number is used again. Thread-safe.
void keepInForkedChild(int descriptor);

} // namespace torchwire
