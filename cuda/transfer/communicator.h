// What it takes to send memory from one GPU to another by NCCL.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>
#include <variant>

namespace torchwire::cuda {

/// One of a communicator's two ranks, and the stream of its own on which its device sends and receives. What is begun (the
/// communicator itself, a send, a receive) has reached the device once isReady() says so, and no earlier: NCCL does it on a
/// thread of its own. Only then may something else be begun, or an event be recorded behind it. All but the destructor and
/// abort() throw std::runtime_error with a sentence. Not thread-safe.
class Communicator {
 public:
  /// Sends go one way only. The two ends of a communicator that went both would have to agree on an order of them.
  enum class Rank { sender = 0, receiver = 1 };

  /// Aborts.
  virtual ~Communicator() = default;

  /// Whether what was begun last has reached the device. Does not wait.
  virtual bool isReady() = 0;
  /// Do not wait. The memory belongs to the device until the stream has come past them.
  virtual void send(const void* data, size_t bytes) = 0;
  virtual void receive(void* data, size_t bytes) = 0;
  virtual c10::Stream stream() const = 0;

  /// Ends what the device has begun, done or not; nothing may be begun any more. May wait for the device.
  virtual void abort() noexcept = 0;
};

/// NCCL. Thread-safe; throws std::runtime_error with a sentence.
class Nccl {
 public:
  virtual ~Nccl() = default;

  /// Of a new communicator, which both ranks need.
  virtual std::string newId() = 0;
  /// Tells GPUs apart, by whatever number each process knows them: NCCL refuses two ranks on one.
  virtual std::string gpuId(c10::DeviceIndex device) = 0;
  /// Begins to make a communicator, which takes both ranks. Does not wait.
  virtual std::unique_ptr<Communicator> begin(
      c10::DeviceIndex device, Communicator::Rank rank, const std::string& id) = 0;
};

/// The NCCL that torch has loaded, or why there is none. Lives as long as the process. Thread-safe.
std::variant<Nccl*, std::string> nccl();

} // namespace torchwire::cuda
