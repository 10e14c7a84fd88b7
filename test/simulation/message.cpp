#include "test/simulation/message.h"

#include <cstring>
#include <type_traits>

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
  bool failed = false;
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

OutgoingFrame Message::encode(FrameKind kindOfFrame) const {
  OutgoingFrame frame;
  const size_t length = sizeof(Fixed) + pickled.size() + padding;
  frame.head.reserve(FrameHeader::kSize + length);
  ByteWriter out(frame.head);
  FrameHeader{.kind = kindOfFrame, .messageType = static_cast<uint32_t>(kind), .bodyLength = length}
      .write(out);
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
  fixed.failed = failed;
  fixed.padding = padding;
  out.raw(&fixed, sizeof(fixed));
  out.raw(pickled.data(), pickled.size());
  frame.head.resize(frame.head.size() + padding);
  return frame;
}

Message Message::decode(const ReceivedFrame& frame) {
  ByteReader in(frame.frame.head);
  const FrameHeader header = FrameHeader::read(in);
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
  message.failed = fixed.failed;
  message.padding = fixed.padding;
  const size_t pickled = header.bodyLength - sizeof(fixed) - fixed.padding;
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

} // namespace torchwire::simulation
