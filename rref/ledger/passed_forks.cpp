#include "rref/ledger/passed_forks.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

namespace torchwire {
namespace {

// Those that are pickled and never sent would stay for ever.
constexpr size_t kMostPickled = 16384;

// Before which pickle's protocol 4 begins no further frame.
constexpr size_t kFirstFrame = size_t{64} << 10;
constexpr char kFrame = '\x95';
constexpr size_t kFrameHead = 9; // with its length

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

/// As PyRRef._serialize() has them in its tuple, up to the type's name.
PickledNumbers numbersOf(const PassedForks::Fork& fork, WorkerId parent) {
  PickledNumbers numbers;
  size_t i = 0;
  for (const int64_t number :
       {int64_t{fork.owner}, int64_t{fork.rref.createdOn}, fork.rref.localId,
        int64_t{fork.fork.createdOn}, fork.fork.localId, int64_t{parent}}) {
    appendPickled(numbers.bytes, number);
    numbers.ends.at(i++) = static_cast<uint8_t>(numbers.bytes.size());
  }
  return numbers;
}

/// Where a frame may begin that is not the first.
std::vector<size_t> framesIn(std::string_view payload) {
  std::vector<size_t> frames;
  for (size_t at = payload.find(kFrame, std::min(kFirstFrame, payload.size()));
       at != std::string_view::npos; at = payload.find(kFrame, at + 1)) {
    const bool isLength =
        at + kFrameHead < payload.size() && payload[at + 7] == 0 && payload[at + 8] == 0;
    if (isLength) {
      frames.push_back(at);
    }
  }
  return frames;
}

/// Whether the numbers are on both sides of a frame's head.
bool areAround(std::string_view payload, size_t frame, const PickledNumbers& numbers) {
  const std::string_view bytes = numbers.bytes;
  const std::string_view behind = payload.substr(frame + kFrameHead);
  return std::any_of(numbers.ends.begin(), numbers.ends.end() - 1, [&](size_t before) {
    return before <= frame && payload.substr(frame - before, before) == bytes.substr(0, before) &&
        behind.starts_with(bytes.substr(before));
  });
}

/// Looks for one after the other, which are pickled in the order in which they are looked for, as a rule.
class PayloadSearch {
 public:
  explicit PayloadSearch(std::string_view payload) : payload_(payload) {}

  bool finds(const PickledNumbers& numbers) {
    const std::string_view bytes = numbers.bytes;
    size_t at = payload_.find(bytes, next_);
    if (at == std::string_view::npos && next_ != 0) {
      at = payload_.substr(0, next_ + bytes.size()).find(bytes);
    }
    if (at != std::string_view::npos) {
      next_ = at;
      return true;
    }
    if (!frames_) {
      frames_ = framesIn(payload_);
    }
    return std::any_of(frames_->begin(), frames_->end(), [&](size_t frame) {
      return areAround(payload_, frame, numbers);
    });
  }

 private:
  const std::string_view payload_;
  std::optional<std::vector<size_t>> frames_; // once they are wanted
  size_t next_ = 0;
};

} // namespace

void PassedForks::pickled(const Fork& fork, WorkerId parent) {
  PickledNumbers numbers = numbersOf(fork, parent);
  MutexLock lock(mutex_);
  if (pickled_.size() == kMostPickled) {
    pickled_.pop_front();
  }
  pickled_.push_back({fork, parent, std::move(numbers)});
  anyPickled_.store(true, std::memory_order_release);
}

std::vector<PassedForks::Fork> PassedForks::withdrawn(const std::vector<Fork>& forks) {
  std::unordered_set<GlobalId, GlobalIdHash> ids;
  for (const Fork& one : forks) {
    ids.insert(one.fork);
  }
  std::vector<Fork> taken;
  MutexLock lock(mutex_);
  std::erase_if(pickled_, [&](const Pickled& one) {
    if (!ids.contains(one.fork.fork)) {
      return false;
    }
    taken.push_back(one.fork);
    return true;
  });
  anyPickled_.store(!pickled_.empty(), std::memory_order_release);
  return taken;
}

PassedForks::Forks PassedForks::find(WorkerId to, std::string_view payload) {
  Forks found;
  PayloadSearch search(payload);
  MutexLock lock(mutex_);
  const auto isInIt = [&](const Pickled& one) REQUIRES(mutex_) {
    if (!search.finds(one.numbers)) {
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
