#include "cuda/transfer/lane_end.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "cuda/error_text.h"

namespace torchwire::cuda {
namespace {

constexpr std::chrono::microseconds kLongestRest{500};

std::string tooLong() {
  return "NCCL has not connected the two devices within " +
      std::to_string(LaneEnd::kSetUpLimit.count()) + " s";
}

} // namespace

void Patience::wait() {
  std::this_thread::sleep_for(pause_);
  pause_ = std::min(pause_ * 2, kLongestRest);
}

void LaneEnd::awaitPeer() {
  const auto limit = std::chrono::steady_clock::now() + kSetUpLimit;
  for (Patience patience; !isReady(); patience.wait()) {
    if (std::chrono::steady_clock::now() >= limit) {
      fail(tooLong());
    }
  }
}

bool LaneEnd::isReady() {
  MutexLock lock(mutex_);
  expectWorking();
  return communicator_->isReady();
}

bool LaneEnd::fail(const std::string& why) {
  MutexLock lock(errorMutex_);
  if (failed_) {
    return false;
  }
  error_ = why;
  failed_ = true;
  return true;
}

std::string LaneEnd::whyFailed() const {
  MutexLock lock(errorMutex_);
  return error_;
}

void LaneEnd::expectWorking() const {
  if (failed_) {
    throw std::runtime_error(whyFailed());
  }
}

void LaneEnd::abort() {
  MutexLock lock(mutex_);
  communicator_->abort();
}

void LaneEnd::issue(const std::function<void(Communicator&)>& operation) {
  expectWorking();
  try {
    operation(*communicator_);
    const auto limit = std::chrono::steady_clock::now() + kSetUpLimit;
    for (Patience patience; !communicator_->isReady(); patience.wait()) {
      expectWorking();
      if (std::chrono::steady_clock::now() >= limit) {
        throw std::runtime_error(tooLong());
      }
    }
  } catch (const std::exception& e) { // what has reached the device nobody knows
    fail(reasonOf(e));
    throw;
  }
}

void LaneEnd::checkHealth() {
  try {
    MutexLock lock(mutex_);
    if (!failed_) {
      communicator_->isReady();
    }
  } catch (const std::exception& e) {
    fail(reasonOf(e));
  }
}

} // namespace torchwire::cuda
