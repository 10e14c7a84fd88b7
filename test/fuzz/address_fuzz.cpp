// Addresses that other workers tell: of TCP and of abstract Unix sockets.

#include <cstdint>
#include <stdexcept>
#include <string>

#include "backend/transport/socket_address.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

void parseTcp(const std::string& text) {
  try {
    const SocketAddress address = SocketAddress::tcp(text);
    const SocketAddress again = SocketAddress::tcp(address.describe());
    require(again.describe() == address.describe(), "an address that was described is the same");
    require(again.port() == address.port(), "a port stays the same");
  } catch (const std::runtime_error&) { // not an address
  }
}

void parseUnix(const std::string& text) {
  try {
    require(SocketAddress::abstractUnix(text).describe() == text, "a name is kept as it is");
  } catch (const std::runtime_error&) { // empty or too long
    require(text.empty() || text.size() > 100, "other names are taken");
  }
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  torchwire::parseTcp(text);
  torchwire::parseUnix(text);
  return 0;
}
