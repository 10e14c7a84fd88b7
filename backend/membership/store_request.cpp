#include "backend/membership/store_request.h"

#include "backend/base/bytes.h"

namespace torchwire {
namespace {

void write(ByteWriter& out, const StorePlace& place) {
  out.number(place.lap);
  out.number(place.server);
}

StorePlace readPlace(ByteReader& in) {
  StorePlace place;
  place.lap = in.number<uint32_t>();
  place.server = in.number<WorkerId>();
  return place;
}

void write(ByteWriter& out, const KeyValueStore::Value& value) {
  out.number(static_cast<uint32_t>(value.size()));
  out.raw(value.data(), value.size());
}

KeyValueStore::Value readValue(ByteReader& in) {
  const std::string bytes = in.string();
  return KeyValueStore::Value(bytes.begin(), bytes.end());
}

} // namespace

std::vector<char> StoreRequest::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(operation);
  write(out, place);
  out.string(key);
  write(out, expected);
  write(out, value);
  out.number(amount);
  return bytes;
}

StoreRequest StoreRequest::decode(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  StoreRequest request;
  const auto operation = in.number<uint8_t>();
  if (operation > static_cast<uint8_t>(Operation::comeOver)) {
    throw FormatError("a store has no operation " + std::to_string(operation));
  }
  request.operation = static_cast<Operation>(operation);
  request.place = readPlace(in);
  request.key = in.string();
  request.expected = readValue(in);
  request.value = readValue(in);
  request.amount = in.number<int64_t>();
  return request;
}

std::vector<char> StoreAnswer::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  write(out, place);
  write(out, value);
  out.number(number);
  return bytes;
}

StoreAnswer StoreAnswer::decode(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  StoreAnswer answer;
  answer.place = readPlace(in);
  answer.value = readValue(in);
  answer.number = in.number<int64_t>();
  return answer;
}

} // namespace torchwire
