// What a callee remembers of the requests that it serves, for rules about their responses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"

namespace torchwire::faults {

struct RequestNote {
  uint32_t type = 0;
  uint64_t content = 0; // a hash of its body, or 0 where no rule asked for it
};

/// By caller and call id. Keeps the newest notes only: a request that is never answered must not stay for
/// ever. Thread-safe.
class RequestNotes {
 public:
  static constexpr size_t kMax = size_t{1} << 16;

  explicit RequestNotes(size_t most = kMax) : most_(most) {}

  /// Once for each time that the request arrives: a fault may have made two of it.
  void add(const std::string& caller, uint64_t callId, RequestNote note) EXCLUDES(mutex_);
  /// For one response; nothing when there is no note (any more).
  std::optional<RequestNote> take(const std::string& caller, uint64_t callId) EXCLUDES(mutex_);
  /// The calls of this caller, of which it forgets all.
  std::vector<uint64_t> takeAll(const std::string& caller) EXCLUDES(mutex_);

 private:
  using Key = std::pair<std::string, uint64_t>;
  struct Kept {
    RequestNote note;
    uint64_t copies = 1;
    std::list<Key>::iterator age;
  };

  const size_t most_;
  Mutex mutex_{LockRank::requestNotes};
  std::map<Key, Kept> notes_ GUARDED_BY(mutex_);
  std::list<Key> byAge_ GUARDED_BY(mutex_); // the oldest first
};

} // namespace torchwire::faults
