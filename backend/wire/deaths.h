// The group's dead, as all of its workers agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/base/bytes.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// That an incarnation of a worker takes no part in the group any more. A value.
struct Death {
  WorkerId id = -1;
  uint64_t incarnation = 0;
  std::string reason; // as in "worker 'w' (rank 1) has died: <reason>"

  bool isOf(const WorkerRecord& worker) const {
    return id == worker.id && incarnation == worker.incarnation;
  }
  void write(ByteWriter& out) const;
  /// Throws FormatError.
  static Death read(ByteReader& in);
};

/// The list of them that the group keeps in the store: of each rank the latest 64. A value.
struct Deaths {
  std::vector<Death> all;

  /// Null if that incarnation is not on it.
  const Death* find(WorkerId id, uint64_t incarnation) const;
  void add(Death death);

  std::vector<char> encode() const;
  /// Throws FormatError.
  static Deaths decode(const std::vector<char>& bytes);
};

} // namespace torchwire
