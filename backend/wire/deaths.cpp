#include "backend/wire/deaths.h"

#include <algorithm>
#include <utility>

namespace torchwire {
namespace {

// Of one rank. A former process that still lives has to find itself on the list.
constexpr ptrdiff_t kRemembered = 64;
constexpr uint32_t kDeathsMagic = 0x44525754; // "TWRD"

} // namespace

void Death::write(ByteWriter& out) const {
  out.number(id);
  out.number(incarnation);
  out.string(reason);
}

Death Death::read(ByteReader& in) {
  Death death;
  death.id = in.number<WorkerId>();
  death.incarnation = in.number<uint64_t>();
  death.reason = in.string();
  return death;
}

const Death* Deaths::find(WorkerId id, uint64_t incarnation) const {
  const auto it = std::find_if(all.begin(), all.end(), [&](const Death& death) {
    return death.id == id && death.incarnation == incarnation;
  });
  return it == all.end() ? nullptr : &*it;
}

void Deaths::add(Death death) {
  const auto isOfRank = [&](const Death& other) { return other.id == death.id; };
  if (std::count_if(all.begin(), all.end(), isOfRank) >= kRemembered) {
    all.erase(std::find_if(all.begin(), all.end(), isOfRank));
  }
  all.push_back(std::move(death));
}

std::vector<char> Deaths::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(kDeathsMagic);
  out.number(static_cast<uint32_t>(all.size()));
  for (const Death& death : all) {
    death.write(out);
  }
  return bytes;
}

Deaths Deaths::decode(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  if (in.number<uint32_t>() != kDeathsMagic) {
    throw FormatError("the store's list of the dead is not torchwire's");
  }
  Deaths deaths;
  for (uint32_t left = in.count(sizeof(uint64_t)); left > 0; --left) {
    deaths.all.push_back(Death::read(in));
  }
  return deaths;
}

} // namespace torchwire
