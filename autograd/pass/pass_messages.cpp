#include "autograd/pass/pass_messages.h"

#include "backend/base/bytes.h"

namespace torchwire {
namespace {

constexpr uint8_t kSmart = 1;
constexpr uint8_t kRetainGraph = 2;

void write(ByteWriter& out, const PassId& id) {
  out.number(id.context);
  out.number(id.root);
  out.number(id.number);
}

PassId readPassId(ByteReader& in) {
  PassId id;
  id.context = in.number<int64_t>();
  id.root = in.number<WorkerId>();
  id.number = in.number<uint64_t>();
  return id;
}

template <typename T>
void writeNumbers(ByteWriter& out, const std::vector<T>& numbers) {
  out.number(static_cast<uint32_t>(numbers.size()));
  out.raw(numbers.data(), numbers.size() * sizeof(T));
}

template <typename T>
std::vector<T> readNumbers(ByteReader& in) {
  std::vector<T> numbers(in.count(sizeof(T)));
  for (T& number : numbers) {
    number = in.number<T>();
  }
  return numbers;
}

// With room for what most messages need.
std::vector<char> buffer() {
  std::vector<char> bytes;
  bytes.reserve(64);
  return bytes;
}

} // namespace

std::vector<char> encode(const PassId& id) {
  std::vector<char> bytes = buffer();
  ByteWriter out(bytes);
  write(out, id);
  return bytes;
}

std::vector<char> encode(const GradientsHead& head) {
  std::vector<char> bytes = buffer();
  ByteWriter out(bytes);
  write(out, head.pass);
  out.number(
      static_cast<uint8_t>(
          (head.options.smart ? kSmart : 0) | (head.options.retainGraph ? kRetainGraph : 0)));
  out.number(head.send);
  return bytes;
}

std::vector<char> encode(const EndRequest& request) {
  std::vector<char> bytes = buffer();
  ByteWriter out(bytes);
  write(out, request.pass);
  out.number(static_cast<uint32_t>(request.limit.count()));
  return bytes;
}

std::vector<char> encode(const Report& report) {
  std::vector<char> bytes = buffer();
  ByteWriter(bytes).number(report.waiting);
  return bytes;
}

std::vector<char> encode(const DiscoverRequest& request) {
  std::vector<char> bytes = buffer();
  ByteWriter out(bytes);
  write(out, request.pass);
  writeNumbers(out, request.sends);
  return bytes;
}

std::vector<char> encode(const Discovered& discovered) {
  std::vector<char> bytes = buffer();
  ByteWriter out(bytes);
  writeNumbers(out, discovered.workers);
  return bytes;
}

std::vector<char> encode(const PassEnded& ended) {
  std::vector<char> bytes = buffer();
  ByteWriter out(bytes);
  out.number(static_cast<uint32_t>(ended.waiting.size()));
  for (const WaitingSend& waiting : ended.waiting) {
    out.number(waiting.worker);
    out.number(waiting.send);
    out.string(waiting.function);
  }
  return bytes;
}

PassId decodePassId(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  return readPassId(in);
}

GradientsHead decodeGradientsHead(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  GradientsHead head;
  head.pass = readPassId(in);
  const auto flags = in.number<uint8_t>();
  head.options = {(flags & kSmart) != 0, (flags & kRetainGraph) != 0};
  head.send = in.number<int64_t>();
  return head;
}

EndRequest decodeEndRequest(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  EndRequest request;
  request.pass = readPassId(in);
  request.limit = std::chrono::milliseconds(in.number<uint32_t>());
  return request;
}

Report decodeReport(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  return Report{in.number<int64_t>()};
}

DiscoverRequest decodeDiscoverRequest(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  DiscoverRequest request;
  request.pass = readPassId(in);
  request.sends = readNumbers<int64_t>(in);
  return request;
}

Discovered decodeDiscovered(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  return Discovered{readNumbers<WorkerId>(in)};
}

PassEnded decodePassEnded(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  PassEnded ended;
  ended.waiting.resize(in.count(sizeof(WorkerId) + sizeof(int64_t) + sizeof(uint32_t)));
  for (WaitingSend& waiting : ended.waiting) {
    waiting.worker = in.number<WorkerId>();
    waiting.send = in.number<int64_t>();
    waiting.function = in.string();
  }
  return ended;
}

} // namespace torchwire
