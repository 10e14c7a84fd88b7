// What a peer says of its transports and channels, and what is made of it.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/base/bytes.h"
#include "backend/tensorpipe/offer.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

const std::vector<Candidate> kKnown = {
    {"wire_shm", std::nullopt}, {"wire_tcp", std::nullopt}, {"uv", Objection{"why not", ""}}};

void use(const Offered& offered) {
  const Choice choice = choose(
      kKnown, offered,
      [](const std::string&, const std::string& descriptor) {
        return descriptor.empty() ? std::optional(Objection{"apart", ""}) : std::nullopt;
      },
      "_transports");
  const bool isKnown = std::any_of(
      kKnown.begin(), kKnown.end(), [&](const Candidate& one) { return one.name == choice.name; });
  require(isKnown || choice.name == "none", "what is chosen is known");
  require(choice.notTaken.size() <= kKnown.size(), "each candidate is passed over once");
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<char> bytes(data, data + size);
  try {
    const torchwire::Offer offer = torchwire::Offer::decode(bytes);
    const std::vector<char> encoded = offer.encode();
    torchwire::require(
        bytes.size() >= encoded.size() && std::equal(encoded.begin(), encoded.end(), bytes.begin()),
        "an offer that was decoded is what was written");
    torchwire::use(offer.transports);
    torchwire::use(offer.channels);
  } catch (const torchwire::FormatError&) { // not an offer
  }
  return 0;
}
