#include "test/simulation/message.h"

#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend/wire/message_body.h"
#include "backend/wire/own_requests.h"

namespace torchwire::simulation {
namespace {

/// All of fixed size, as it lies in memory: nobody else reads it.
struct Fixed {
  uint64_t call = 0;
  MessageKind kind{};
  WorkerId then = -1;
  ContextId context = -1;
  GlobalId rref{};
  GlobalId fork{};
  WorkerId owner = -1;
  WorkerId parent = -1;
  bool keep = false;
  uint32_t padding = 0;
};
static_assert(std::is_trivially_copyable_v<Fixed>);

/// A number of more than four bytes, as Python's pickle writes it: all of these are.
void appendLong(std::string& out, int64_t value) {
  size_t count = 5;
  while (count < 8 && value >> (8 * count - 1) != 0) {
    ++count;
  }
  out.push_back('\x8a');
  out.push_back(static_cast<char>(count));
  for (size_t i = 0; i < count; ++i) {
    out.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
}

void appendByte(std::string& out, int32_t value) {
  out.push_back('K');
  out.push_back(static_cast<char>(value));
}

} // namespace

const char* nameOf(MessageKind kind) {
  switch (kind) {
    case MessageKind::call:
      return "call";
    case MessageKind::create:
      return "create";
    case MessageKind::pass:
      return "pass";
    case MessageKind::forkRequest:
      return "fork request";
    case MessageKind::childAccept:
      return "child accept";
    case MessageKind::userDelete:
      return "user delete";
    case MessageKind::release:
      return "release";
  }
  return "?";
}

OutgoingFrame Message::encode() const {
  Fixed fixed;
  fixed.call = call;
  fixed.kind = kind;
  fixed.then = then;
  fixed.context = context;
  fixed.rref = rref;
  fixed.fork = fork;
  fixed.owner = owner;
  fixed.parent = parent;
  fixed.keep = keep;
  fixed.padding = padding;
  std::vector<char> body;
  ByteWriter out(body);
  out.raw(&fixed, sizeof(fixed));
  out.raw(pickled.data(), pickled.size());
  body.resize(body.size() + padding);
  return bodyFrame(FrameKind::request, static_cast<uint32_t>(kind), std::move(body));
}

Message Message::decode(ReceivedFrame frame) {
  const std::vector<char> body = bodyIn(std::move(frame));
  ByteReader in(body);
  Fixed fixed;
  std::memcpy(&fixed, in.raw(sizeof(fixed)), sizeof(fixed));
  Message message;
  message.call = fixed.call;
  message.kind = fixed.kind;
  message.then = fixed.then;
  message.context = fixed.context;
  message.rref = fixed.rref;
  message.fork = fixed.fork;
  message.owner = fixed.owner;
  message.parent = fixed.parent;
  message.keep = fixed.keep;
  message.padding = fixed.padding;
  const size_t pickled = body.size() - sizeof(fixed) - fixed.padding;
  message.pickled.assign(in.raw(pickled), pickled);
  return message;
}

// As PyRRef._serialize() has the numbers in its tuple.
std::string Message::pickle() const {
  std::string bytes;
  appendByte(bytes, owner);
  appendByte(bytes, rref.createdOn);
  appendLong(bytes, rref.localId);
  appendByte(bytes, fork.createdOn);
  appendLong(bytes, fork.localId);
  appendByte(bytes, parent);
  return bytes;
}

OutgoingFrame answerTo(uint64_t call, bool failed) {
  std::vector<char> body;
  ByteWriter(body).number(call);
  return bodyFrame(
      FrameKind::response, failed ? own_requests::kException : own_requests::kNoted,
      std::move(body));
}

uint64_t answeredIn(ReceivedFrame frame) {
  const std::vector<char> body = bodyIn(std::move(frame));
  return ByteReader(body).number<uint64_t>();
}

} // namespace torchwire::simulation
