#include "backend/transport/rejection_log.h"

#include <atomic>

#include "backend/base/log.h"

namespace torchwire {
namespace {

constexpr std::chrono::seconds kWindow{10};
constexpr int kLinesPerWindow = 10;

std::atomic<uint64_t> noted{0};

} // namespace

uint64_t RejectionLog::countInProcess() {
  return noted.load();
}

void RejectionLog::note(const std::string& from, const std::string& reason, Clock::time_point now) {
  ++noted;
  if (windowStart_ == Clock::time_point{} || now - windowStart_ >= kWindow) {
    if (untold_ != 0) {
      log(LogLevel::warning,
          where_ + " refused " + std::to_string(untold_) + " more connections in the meantime");
    }
    windowStart_ = now;
    told_ = 0;
    untold_ = 0;
  }
  if (told_ == kLinesPerWindow) {
    ++untold_;
    return;
  }
  ++told_;
  log(LogLevel::warning, where_ + " refused a connection from " + from + ": " + reason);
}

} // namespace torchwire
