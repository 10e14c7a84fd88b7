#include "autograd/forward_envelope.h"

#include <optional>
#include <string_view>

namespace torchwire {
namespace {

using torch::distributed::rpc::Message;
using torch::distributed::rpc::MessageType;

/// What libtorch appends to the call's own payload: a pickled tuple, and after it the tuple's length, as 8 bytes with the
/// highest first.
std::string_view metadataIn(std::string_view payload) {
  constexpr size_t kLength = sizeof(uint64_t);
  if (payload.size() < kLength) {
    return {};
  }
  uint64_t length = 0;
  for (const char byte : payload.substr(payload.size() - kLength)) {
    length = length << 8 | static_cast<unsigned char>(byte);
  }
  payload.remove_suffix(kLength);
  return length <= payload.size() ? payload.substr(payload.size() - length) : std::string_view();
}

/// The number that a pickle begins with, of those that fit in two bytes.
std::optional<uint16_t> firstNumber(std::string_view pickle) {
  constexpr std::string_view kTuple =
      "\x80\x02("; // protocol 2, and the mark before the tuple's elements
  if (!pickle.starts_with(kTuple) || pickle.size() < kTuple.size() + 3) {
    return std::nullopt;
  }
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(pickle[kTuple.size() + i]); };
  switch (byte(0)) {
    case 'K': // a byte
      return byte(1);
    case 'M': // two, with the lowest first
      return static_cast<uint16_t>(byte(1) | byte(2) << 8);
    default:
      return std::nullopt;
  }
}

} // namespace

MessageType typeOfCall(const Message& request) {
  if (request.type() != MessageType::FORWARD_AUTOGRAD_REQ) {
    return request.type();
  }
  const auto& payload = request.payload();
  const auto number = firstNumber(metadataIn({payload.data(), payload.size()}));
  return number ? static_cast<MessageType>(*number) : request.type();
}

} // namespace torchwire
