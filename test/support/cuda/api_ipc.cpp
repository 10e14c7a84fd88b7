// Memory and events of other processes.
#include <map>
#include <mutex>
#include <utility>

#include <unistd.h>

#include "test/support/cuda/address_map.h"
#include "test/support/cuda/call.h"
#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/device.h"
#include "test/support/cuda/event_table.h"
#include "test/support/cuda/faults.h"
#include "test/support/cuda/ipc_handle.h"
#include "test/support/cuda/memory_block.h"
#include "test/support/cuda/settings.h"
#include "test/support/cuda/statistics.h"
#include "test/support/cuda/stream_table.h"

using namespace torchwire::cuda_stand_in;

namespace {

/// Memory that is open, for a device.
struct Key {
  uint64_t inode;
  int device;

  auto operator<=>(const Key&) const = default;
};

struct Opened {
  void* base;
  int times;
};

struct Table {
  std::mutex mutex;
  std::map<Key, Opened> opened;
};

Table& table() {
  static Table& all = *new Table;
  return all;
}

/// Why the handle may not be opened here, whatever it is of.
cudaError_t refusal(const IpcHandle& handle) {
  if (handle.file.process == ::getpid()) {
    return cudaErrorDeviceUninitialized; // "invalid device context", as CUDA calls it
  }
  if (settings().exclusive) {
    return cudaErrorDevicesUnavailable;
  }
  const bool isSameDevice = handle.machineDevice == machineDevice(currentDevice());
  return isSameDevice || settings().peerAccess ? cudaSuccess : cudaErrorPeerAccessUnsupported;
}

std::shared_ptr<MemoryBlock> map(const IpcHandle& handle) {
  const int device = visibleDevice(handle.machineDevice);
  return takeFault(Fault::kIpcWrongBytes) == cudaSuccess
      ? MemoryBlock::imported(device, handle.file)
      : MemoryBlock::mistaken(device, handle.file);
}

cudaError_t open(void** address, const IpcHandle& handle) {
  const std::lock_guard lock(table().mutex);
  const Key key{handle.file.inode, currentDevice()};
  if (const auto found = table().opened.find(key); found != table().opened.end()) {
    ++found->second.times;
    *address = found->second.base;
    return cudaSuccess;
  }
  auto block = map(handle);
  if (block == nullptr) {
    return cudaErrorInvalidValue;
  }
  count(Count::kIpcOpens);
  *address = block->base();
  table().opened.emplace(key, Opened{block->base(), 1});
  address_map::add(std::move(block));
  return cudaSuccess;
}

/// Whether it was the last time that it is closed.
bool close(void* address) {
  const std::lock_guard lock(table().mutex);
  for (auto entry = table().opened.begin(); entry != table().opened.end(); ++entry) {
    if (entry->second.base == address && --entry->second.times == 0) {
      table().opened.erase(entry);
      return true;
    }
  }
  return false;
}

} // namespace

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  return call([&] {
    if (const cudaError_t error = takeFault(Fault::kIpcGet); error != cudaSuccess) {
      return error;
    }
    const auto block = address_map::find(address);
    if (block == nullptr || block->kind() != MemoryBlock::Kind::kDevice) {
      return cudaErrorInvalidValue;
    }
    count(Count::kIpcGets);
    *handle = IpcHandle::packed<cudaIpcMemHandle_t>(
        {IpcHandle::kMemory, machineDevice(block->device()), block->fileName()});
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t bytes, unsigned flags) {
  return call([&] {
    const auto handle = IpcHandle::unpacked(bytes, IpcHandle::kMemory);
    if (!handle || flags != cudaIpcMemLazyEnablePeerAccess) {
      return cudaErrorInvalidValue;
    }
    use(currentDevice());
    if (const cudaError_t error = takeFault(Fault::kIpcOpen); error != cudaSuccess) {
      return error;
    }
    if (const cudaError_t error = refusal(*handle); error != cudaSuccess) {
      return error;
    }
    return open(address, *handle);
  });
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  return call([&] {
    const auto block = address_map::find(address);
    if (block == nullptr || block->kind() != MemoryBlock::Kind::kImported ||
        block->base() != address) {
      return cudaErrorInvalidValue;
    }
    if (close(address)) {
      count(Count::kFreeWaits);
      stream_table::awaitAllDevices();
      address_map::remove(address, MemoryBlock::Kind::kImported);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t eventHandle) {
  return call([&] {
    const auto event = event_table::find(eventHandle);
    if (event == nullptr || !event->canBeShared()) {
      return cudaErrorInvalidResourceHandle;
    }
    *handle = IpcHandle::packed<cudaIpcEventHandle_t>(
        {IpcHandle::kEvent, machineDevice(event->device()), event->fileName()});
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* eventHandle, cudaIpcEventHandle_t bytes) {
  return call([&] {
    const auto handle = IpcHandle::unpacked(bytes, IpcHandle::kEvent);
    if (!handle) {
      return cudaErrorInvalidValue;
    }
    if (const cudaError_t error = takeFault(Fault::kIpcOpenEvent); error != cudaSuccess) {
      return error;
    }
    if (const cudaError_t error = refusal(*handle); error != cudaSuccess) {
      return error;
    }
    auto event = Event::open(currentDevice(), handle->file);
    if (event == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    use(currentDevice());
    count(Count::kIpcEventOpens);
    *eventHandle = event_table::add(std::move(event));
    return cudaSuccess;
  });
}
