#include "test/support/cuda/stream_table.h"

#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "test/support/cuda/device.h"
#include "test/support/cuda/settings.h"

namespace torchwire::cuda_stand_in::stream_table {
namespace {

/// Held while an operation is enqueued: what it waits for has been enqueued before it, so there are no circles.
struct Table {
  std::mutex mutex;
  std::unordered_map<cudaStream_t, std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Stream>> destroyed; // with work that the device still has to do
  std::array<std::shared_ptr<Stream>, kMaxDevices> defaults;
  uint64_t nextId = 1;
};

Table& table() {
  static Table& all = *new Table;
  return all;
}

/// These three with the mutex held.
const std::shared_ptr<Stream>& defaultStream(int device) {
  auto& stream = table().defaults[device];
  if (stream == nullptr) {
    stream = std::make_shared<Stream>(device, cudaStreamDefault, 0, 0);
  }
  return stream;
}

std::vector<std::shared_ptr<Stream>> othersOf(int device, bool onlyBlocking) {
  std::vector<std::shared_ptr<Stream>> others;
  const auto consider = [&](const std::shared_ptr<Stream>& stream) {
    const bool blocks = (stream->flags() & cudaStreamNonBlocking) == 0;
    if (stream->device() == device && (blocks || !onlyBlocking)) {
      others.push_back(stream);
    }
  };
  for (const auto& [handle, stream] : table().streams) {
    consider(stream);
  }
  for (const auto& stream : table().destroyed) {
    consider(stream);
  }
  return others;
}

std::vector<std::shared_ptr<Stream>> waitedFor(const std::shared_ptr<Stream>& stream) {
  if (stream->id() == 0) {
    return othersOf(stream->device(), true);
  }
  const auto& first = table().defaults[stream->device()];
  const bool blocks = (stream->flags() & cudaStreamNonBlocking) == 0;
  return blocks && first != nullptr ? std::vector{first} : std::vector<std::shared_ptr<Stream>>{};
}

} // namespace

cudaStream_t create(int device, unsigned flags, int priority) {
  const std::lock_guard lock(table().mutex);
  auto stream = std::make_shared<Stream>(device, flags, priority, table().nextId++);
  const auto handle = reinterpret_cast<cudaStream_t>(stream.get());
  table().streams.emplace(handle, std::move(stream));
  return handle;
}

std::shared_ptr<Stream> find(cudaStream_t handle) {
  const std::lock_guard lock(table().mutex);
  if (handle == nullptr || handle == cudaStreamLegacy) {
    return defaultStream(currentDevice());
  }
  const auto found = table().streams.find(handle);
  return found == table().streams.end() ? nullptr : found->second;
}

bool destroy(cudaStream_t handle) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().streams.find(handle);
  if (found == table().streams.end()) {
    return false;
  }
  found->second->destroy();
  std::erase_if(table().destroyed, [](const auto& stream) { return stream->isIdle(); });
  table().destroyed.push_back(std::move(found->second));
  table().streams.erase(found);
  return true;
}

void enqueue(const std::shared_ptr<Stream>& stream, std::function<void()> operation) {
  const std::lock_guard lock(table().mutex);
  std::vector<Stream::Moment> after;
  for (const auto& other : waitedFor(stream)) {
    if (!other->isIdle()) {
      after.push_back(other->now());
    }
  }
  stream->enqueue(std::move(operation), std::move(after));
}

void await(const std::shared_ptr<Stream>& stream) {
  std::vector<Stream::Moment> moments;
  {
    const std::lock_guard lock(table().mutex);
    moments.push_back(stream->now());
    for (const auto& other : waitedFor(stream)) {
      moments.push_back(other->now());
    }
  }
  for (const auto& moment : moments) {
    moment.await();
  }
}

bool isIdle(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(table().mutex);
  bool idle = stream->isIdle();
  for (const auto& other : waitedFor(stream)) {
    idle = idle && other->isIdle();
  }
  return idle;
}

void awaitDevice(int device) {
  std::vector<Stream::Moment> moments;
  {
    const std::lock_guard lock(table().mutex);
    moments.push_back(defaultStream(device)->now());
    for (const auto& stream : othersOf(device, false)) {
      moments.push_back(stream->now());
    }
  }
  for (const auto& moment : moments) {
    moment.await();
  }
}

void awaitAllDevices() {
  for (int device = 0; device < deviceCount(); ++device) {
    awaitDevice(device);
  }
}

} // namespace torchwire::cuda_stand_in::stream_table
