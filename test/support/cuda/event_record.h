// When an event was recorded, and whether the streams have come to it: in memory that processes may share.
#pragma once

#include <atomic>
#include <cstdint>

namespace torchwire::cuda_stand_in {

/// An event can be recorded anew before anybody has come to the last time, also by another stream, or process; who
/// waits, waits for the last time before his call. So each time has a number, and a place in a ring. Who waits for a
/// time that is one turn of the ring ago does so for the next that had its place: a turn is long.
///
/// Plain bytes, of which zeros are an event that was never recorded. Thread-safe.
class EventRecord {
 public:
  /// The number of this time. To be called where the program records the event, not where the stream comes to it.
  uint64_t issue();
  /// The stream has come to it.
  void complete(uint64_t number);

  /// The last time's number; 0 for none.
  uint64_t last() const;
  bool isComplete(uint64_t number) const;
  /// Until the stream that recorded it comes to it, or its process is no more.
  void await(uint64_t number);
  /// When the stream has come to the last time, in nanoseconds of a clock that all processes have.
  int64_t completedAt() const;

 private:
  static constexpr int kTurn = 64;

  struct Place {
    std::atomic<uint64_t> completed;
    std::atomic<int32_t> process; // which recorded the event
  };

  Place& placeOf(uint64_t number) {
    return ring_[number % kTurn];
  }
  bool isAbandoned(uint64_t number);

  std::atomic<uint64_t> issued_;
  std::atomic<int64_t> completedAt_;
  std::atomic<uint32_t> changes_; // a futex
  Place ring_[kTurn];
};

} // namespace torchwire::cuda_stand_in
