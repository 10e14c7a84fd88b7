#include "test/support/cuda/nccl_channel.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace torchwire::cuda_stand_in {
namespace {

/// False if `stopped` first.
template <typename Condition>
bool waitFor(Condition condition, const NcclChannel::Stopped& stopped) {
  while (!condition()) {
    if (stopped.load()) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return !stopped.load();
}

} // namespace

std::shared_ptr<NcclChannel> NcclChannel::mapped(SharedFile file) {
  char* const memory = file ? file.map(PROT_READ | PROT_WRITE) : nullptr;
  return memory == nullptr ? nullptr : std::make_shared<NcclChannel>(std::move(file), memory);
}

std::shared_ptr<NcclChannel> NcclChannel::make() {
  return mapped(SharedFile::make(sizeof(Shared)));
}

std::shared_ptr<NcclChannel> NcclChannel::open(const SharedFileName& name) {
  return name.size == sizeof(Shared) ? mapped(SharedFile::open(name)) : nullptr;
}

NcclChannel::~NcclChannel() {
  ::munmap(memory_, sizeof(Shared));
}

void NcclChannel::reach(int rank, Stage stage, int machineDevice) {
  shared().devices[rank].store(machineDevice);
  shared().stages[rank].store(stage);
}

bool NcclChannel::awaitOther(int rank, Stage stage, const Stopped& stopped) const {
  return waitFor([&] { return shared().stages[1 - rank].load() >= stage; }, stopped);
}

int NcclChannel::deviceOf(int rank) const {
  return shared().devices[rank].load();
}

bool NcclChannel::send(const char* data, size_t size, const Stopped& stopped) {
  Shared& to = shared();
  for (size_t sent = 0; sent < size;) {
    if (!waitFor([&] { return to.full.load() == 0; }, stopped)) {
      return false;
    }
    const size_t piece = std::min(kPiece, size - sent);
    std::memcpy(to.piece, data + sent, piece);
    to.size = size;
    to.full.store(1);
    sent += piece;
  }
  return true;
}

bool NcclChannel::receive(char* data, size_t size, const Stopped& stopped) {
  Shared& from = shared();
  for (size_t received = 0; received < size;) {
    if (!waitFor([&] { return from.full.load() == 1; }, stopped) || from.size != size) {
      return false;
    }
    const size_t piece = std::min(kPiece, size - received);
    std::memcpy(data + received, from.piece, piece);
    from.full.store(0);
    received += piece;
  }
  return true;
}

} // namespace torchwire::cuda_stand_in
