#include "backend/tensorpipe/offer.h"

#include <cstdint>
#include <utility>

#include "backend/base/bytes.h"

namespace torchwire {
namespace {

void write(ByteWriter& out, const Offered& offered) {
  out.number(static_cast<uint32_t>(offered.descriptors.size()));
  for (const auto& [name, descriptor] : offered.descriptors) {
    out.string(name);
    out.string(descriptor);
  }
}

void writeLeftOut(ByteWriter& out, const Offered& offered) {
  out.number(static_cast<uint32_t>(offered.leftOut.size()));
  for (const auto& [name, reason, remedy] : offered.leftOut) {
    out.string(name);
    out.string(reason);
    out.string(remedy);
  }
}

Offered readOffered(ByteReader& in) {
  Offered offered;
  const uint32_t count = in.count(2 * sizeof(uint32_t));
  for (uint32_t i = 0; i < count; ++i) {
    std::string name = in.string();
    offered.descriptors.emplace_back(std::move(name), in.string());
  }
  return offered;
}

void readLeftOut(ByteReader& in, Offered& offered) {
  const uint32_t count = in.count(3 * sizeof(uint32_t));
  for (uint32_t i = 0; i < count; ++i) {
    NotTaken one;
    one.name = in.string();
    one.reason = in.string();
    one.remedy = in.string();
    offered.leftOut.push_back(std::move(one));
  }
}

} // namespace

std::vector<char> Offer::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  write(out, transports);
  write(out, channels);
  writeLeftOut(out, transports);
  writeLeftOut(out, channels);
  out.string(dialedAs);
  out.string(host);
  return bytes;
}

Offer Offer::decode(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  Offer offer;
  offer.transports = readOffered(in);
  offer.channels = readOffered(in);
  readLeftOut(in, offer.transports);
  readLeftOut(in, offer.channels);
  offer.dialedAs = in.string();
  offer.host = in.string();
  return offer;
}

} // namespace torchwire
