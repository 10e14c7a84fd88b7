#include "test/support/cuda/device.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "test/support/cuda/settings.h"

namespace torchwire::cuda_stand_in {
namespace {

struct State {
  std::atomic<bool> used{false};
  std::atomic<size_t> taken{0};
};

std::array<State, kMaxDevices> states;
std::atomic<bool> forked{false};
std::once_flag watched;

thread_local int current = 0;
thread_local bool hasContext = false;

void noteFork() {
  for (const State& state : states) {
    if (state.used.load()) {
      forked.store(true);
    }
  }
}

} // namespace

int deviceCount() {
  return static_cast<int>(settings().visible.size());
}

bool isDevice(int device) {
  return device >= 0 && device < deviceCount();
}

int machineDevice(int device) {
  return settings().visible[device];
}

int visibleDevice(int machineDevice) {
  const auto& visible = settings().visible;
  const auto found = std::find(visible.begin(), visible.end(), machineDevice);
  return found == visible.end() ? -1 : static_cast<int>(found - visible.begin());
}

int currentDevice() {
  return current;
}

void setCurrentDevice(int device) {
  current = device;
  hasContext = true;
}

void* currentContext() {
  return hasContext ? contextOf(current) : nullptr;
}

void setCurrentContext(void* context) {
  hasContext = context != nullptr;
  if (hasContext) {
    current = static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
  }
}

void* contextOf(int device) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(device) + 1);
}

void use(int device) {
  std::call_once(watched, [] { pthread_atfork(nullptr, nullptr, noteFork); });
  states[device].used.store(true);
}

bool isUsed(int device) {
  return states[device].used.load();
}

bool forkedAfterUse() {
  return forked.load();
}

bool takeMemory(int device, size_t size) {
  std::atomic<size_t>& taken = states[device].taken;
  size_t before = taken.load();
  do {
    if (size > settings().memory - before) {
      return false;
    }
  } while (!taken.compare_exchange_weak(before, before + size));
  return true;
}

void giveMemory(int device, size_t size) {
  states[device].taken.fetch_sub(size);
}

size_t freeMemory(int device) {
  return settings().memory - states[device].taken.load();
}

} // namespace torchwire::cuda_stand_in
