// What a worker tells a peer of its transports and channels when a link begins.
#pragma once

#include <string>
#include <vector>

#include "backend/tensorpipe/choice.h"

namespace torchwire {

/// A value.
struct Offer {
  Offered transports;
  Offered channels;
  std::string dialedAs; // over wire_tcp, as Endpoint::dialedAs(); empty: not at all
  std::string host; // the boot's id, which tells its host's kernel from others; empty: not known

  std::vector<char> encode() const;
  /// Throws FormatError.
  static Offer decode(const std::vector<char>& bytes);
};

} // namespace torchwire
