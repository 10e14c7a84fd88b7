#include "backend/membership/totals.h"

#include "backend/base/bytes.h"

namespace torchwire {

// Unsigned: a sum of what others have written must not overflow.
void Totals::add(const Totals& one) {
  const auto sum = [](int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  };
  started = sum(started, one.started);
  finished = sum(finished, one.finished);
}

std::vector<char> Totals::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(started);
  out.number(finished);
  for (const auto* ids : {&missing, &present}) {
    out.number(static_cast<uint32_t>(ids->size()));
    for (const WorkerId id : *ids) {
      out.number(id);
    }
  }
  return bytes;
}

Totals Totals::decode(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  Totals totals;
  totals.started = in.number<int64_t>();
  totals.finished = in.number<int64_t>();
  for (auto* ids : {&totals.missing, &totals.present}) {
    for (uint32_t left = in.count(sizeof(WorkerId)); left > 0; --left) {
      ids->insert(in.number<WorkerId>());
    }
  }
  return totals;
}

} // namespace torchwire
