// Memory of a device that another process on the host can open.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <string>
#include <variant>

namespace torchwire::cuda {

/// What it takes of a kind of device, such as CUDA, that processes can open each other's memory. All functions but free()
/// and close() throw std::runtime_error with a sentence. Thread-safe.
class DeviceMemory {
 public:
  /// Memory of this process, and an event for what is done with it.
  struct Block {
    c10::DeviceIndex device = 0;
    void* data = nullptr;
    size_t bytes = 0;
    void* event = nullptr;
    std::string memoryHandle; // by which others open the two
    std::string eventHandle;
  };
  /// Another process's block, as this process sees it.
  struct View {
    c10::DeviceIndex device = 0; // of this process, that can read it
    void* data = nullptr;
    void* event = nullptr;
  };

  virtual ~DeviceMemory() = default;

  /// May wait for the device.
  virtual Block allocate(c10::DeviceIndex device, size_t bytes) = 0;
  virtual void free(const Block& block) noexcept = 0;
  virtual View open(
      c10::DeviceIndex device, const std::string& memoryHandle, const std::string& eventHandle) = 0;
  virtual void close(const View& view) noexcept = 0;

  /// The event stands for what the stream has been given until now.
  virtual void record(void* event, c10::Stream stream) = 0;
  /// What the stream is given from now on waits for what the event stands for.
  virtual void wait(void* event, c10::Stream stream) = 0;
};

/// That of a type of devices, which is loaded by the first call for it, or why there is none. Lives as long as the
/// process. Thread-safe.
std::variant<DeviceMemory*, std::string> deviceMemoryOf(c10::DeviceType type);

} // namespace torchwire::cuda
