#include "rref/ledger/passed_forks.h"

#include <limits>
#include <utility>

namespace torchwire {
namespace {

// Those that are pickled and never sent would stay for ever.
constexpr size_t kMostPickled = 256;

void appendBytes(std::string& out, uint64_t value, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out.push_back(static_cast<char>(value >> (8 * i)));
  }
}

/// As Python's pickle writes it from protocol 2 on, and PyTorch's does: BININT1, BININT2, BININT, or LONG1 with as few
/// bytes as the value and its sign need.
void appendPickled(std::string& out, int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0 && value <= std::numeric_limits<uint8_t>::max()) {
    out.push_back('K');
    appendBytes(out, bits, 1);
  } else if (value >= 0 && value <= std::numeric_limits<uint16_t>::max()) {
    out.push_back('M');
    appendBytes(out, bits, 2);
  } else if (
      value >= std::numeric_limits<int32_t>::min() &&
      value <= std::numeric_limits<int32_t>::max()) {
    out.push_back('J');
    appendBytes(out, bits, 4);
  } else {
    size_t count = 5;
    while (count < 8 && value >> (8 * count - 1) != (value < 0 ? -1 : 0)) {
      ++count;
    }
    out.push_back('\x8a');
    out.push_back(static_cast<char>(count));
    appendBytes(out, bits, count);
  }
}

/// The numbers as PyRRef._serialize() has them in its tuple, up to the type's name.
std::string bytesOf(const PassedForks::Fork& fork, WorkerId parent) {
  std::string bytes;
  for (const int64_t number :
       {int64_t{fork.owner}, int64_t{fork.rref.createdOn}, fork.rref.localId,
        int64_t{fork.fork.createdOn}, fork.fork.localId, int64_t{parent}}) {
    appendPickled(bytes, number);
  }
  return bytes;
}

} // namespace

void PassedForks::pickled(const Fork& fork, WorkerId parent) {
  std::string bytes = bytesOf(fork, parent);
  MutexLock lock(mutex_);
  if (pickled_.size() == kMostPickled) {
    pickled_.pop_front();
  }
  pickled_.push_back({fork, parent, std::move(bytes)});
  anyPickled_.store(true, std::memory_order_release);
}

void PassedForks::withdrawn(const GlobalId& fork) {
  MutexLock lock(mutex_);
  std::erase_if(pickled_, [&](const Pickled& one) { return one.fork.fork == fork; });
  anyPickled_.store(!pickled_.empty(), std::memory_order_release);
}

PassedForks::Forks PassedForks::find(WorkerId to, std::string_view payload) {
  Forks found;
  MutexLock lock(mutex_);
  const auto isInIt = [&](const Pickled& one) REQUIRES(mutex_) {
    if (payload.find(one.bytes) == std::string_view::npos) {
      return false;
    }
    if (to != one.parent) {
      passed_.emplace(one.fork.fork, Passed{one.fork, to});
      found.push_back(one.fork.fork);
    }
    return true;
  };
  std::erase_if(pickled_, isInIt);
  anyPickled_.store(!pickled_.empty(), std::memory_order_release);
  return found;
}

void PassedForks::settled(const GlobalId& fork) {
  MutexLock lock(mutex_);
  passed_.erase(fork);
}

std::vector<PassedForks::Fork> PassedForks::takeThoseOf(WorkerId worker) {
  std::vector<Fork> taken;
  MutexLock lock(mutex_);
  std::erase_if(passed_, [&](const auto& entry) {
    if (entry.second.to != worker && entry.second.fork.owner != worker) {
      return false;
    }
    taken.push_back(entry.second.fork);
    return true;
  });
  return taken;
}

std::vector<PassedForks::Fork> PassedForks::take(const Forks& forks) {
  std::vector<Fork> taken;
  MutexLock lock(mutex_);
  for (const GlobalId& fork : forks) {
    if (const auto passed = passed_.extract(fork)) {
      taken.push_back(passed.mapped().fork);
    }
  }
  return taken;
}

size_t PassedForks::size() const {
  MutexLock lock(mutex_);
  return passed_.size();
}

} // namespace torchwire
