// Memory of a device that is none: counts what is allocated, opened and freed.
#pragma once

#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "cuda/transfer/device_memory.h"

namespace torchwire::cuda {

class FakeDeviceMemory final : public DeviceMemory {
 public:
  bool isFull = false;
  std::set<uintptr_t> allocated;
  std::map<uintptr_t, int> opened; // how often

  Block allocate(c10::DeviceIndex device, size_t bytes) override {
    if (isFull) {
      throw std::runtime_error("out of memory");
    }
    allocated.insert(++last_);
    const std::string handle = std::to_string(last_);
    return {device, asPointer(last_), bytes, nullptr, handle, handle};
  }
  void free(const Block& block) noexcept override {
    allocated.erase(reinterpret_cast<uintptr_t>(block.data));
  }
  View open(c10::DeviceIndex device, const std::string& memoryHandle, const std::string&) override {
    const auto number = static_cast<uintptr_t>(std::stoul(memoryHandle));
    ++opened[number];
    return {device, asPointer(number), nullptr};
  }
  void close(const View& view) noexcept override {
    const auto found = opened.find(reinterpret_cast<uintptr_t>(view.data));
    if (--found->second == 0) {
      opened.erase(found);
    }
  }
  void record(void*, c10::Stream) override {}
  void wait(void*, c10::Stream) override {}

 private:
  static void* asPointer(uintptr_t number) {
    return reinterpret_cast<void*>(number); // NOLINT: never followed
  }

  uintptr_t last_ = 0;
};

} // namespace torchwire::cuda
