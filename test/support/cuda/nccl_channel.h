// What the two ranks of a communicator share: a file in memory, which its id names.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "test/support/cuda/shared_file.h"

namespace torchwire::cuda_stand_in {

/// Bytes go from rank 0 to rank 1, a piece at a time. Who waits for the other rank does so until it stops itself: that the
/// other one has died, or has been aborted, changes nothing, as on a GPU. Thread-safe, but for sends and receives: one thread at
/// a time for each.
class NcclChannel {
 public:
  using Stopped = std::atomic<bool>;

  /// Null if there is no memory for it.
  static std::shared_ptr<NcclChannel> make();
  /// Null if the other process has gone.
  static std::shared_ptr<NcclChannel> open(const SharedFileName& name);

  NcclChannel(SharedFile file, char* memory) : file_(std::move(file)), memory_(memory) {}
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;
  ~NcclChannel();

  SharedFileName name() const {
    return file_.name();
  }

  enum class Stage : uint32_t { kNone, kJoined, kConnected };
  /// The rank has come so far, with this device of the machine.
  void reach(int rank, Stage stage, int machineDevice);
  /// Waits until the other rank has come as far. False if `stopped` first.
  bool awaitOther(int rank, Stage stage, const Stopped& stopped) const;
  int deviceOf(int rank) const;

  /// False if `stopped` before all of it was done, or if the two ends are not for as many bytes.
  bool send(const char* data, size_t size, const Stopped& stopped);
  bool receive(char* data, size_t size, const Stopped& stopped);

 private:
  static constexpr size_t kPiece = 1 << 20;
  struct Shared {
    std::atomic<Stage> stages[2];
    std::atomic<int32_t> devices[2];
    std::atomic<uint32_t> full; // whether there is a piece
    uint64_t size; // of the whole send
    char piece[kPiece];
  };

  static std::shared_ptr<NcclChannel> mapped(SharedFile file);
  Shared& shared() const {
    return *reinterpret_cast<Shared*>(memory_); // zeros are a channel that nobody has used
  }

  SharedFile file_;
  char* const memory_;
};

} // namespace torchwire::cuda_stand_in
