#include "backend/call/latency_histogram.h"

#include <numeric>

namespace torchwire {

LatencyHistogram::Snapshot LatencyHistogram::snapshot() const {
  Snapshot all;
  for (size_t i = 0; i < kBuckets; ++i) {
    all.counts[i] = counts_[i].load(std::memory_order_relaxed);
  }
  all.sum = std::chrono::nanoseconds(nanoseconds_.load(std::memory_order_relaxed));
  return all;
}

uint64_t LatencyHistogram::Snapshot::count() const {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

std::chrono::nanoseconds LatencyHistogram::Snapshot::quantile(double part) const {
  const auto wanted = part * static_cast<double>(count());
  double before = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    const auto here = static_cast<double>(counts[i]);
    if (here > 0 && before + here >= wanted) {
      const std::chrono::nanoseconds low = i == 0 ? std::chrono::microseconds(0) : boundOf(i - 1);
      const double width = static_cast<double>((boundOf(i) - low).count());
      return low + std::chrono::nanoseconds(static_cast<int64_t>(width * (wanted - before) / here));
    }
    before += here;
  }
  return std::chrono::nanoseconds(0);
}

} // namespace torchwire
