#include "cuda/transfer/transfer_messages.h"

#include "cuda/device_record.h"

namespace torchwire::cuda {
namespace {

void expectEnd(const ByteReader& in) {
  if (in.remaining() != 0) {
    throw FormatError("a message about a device's memory is too long");
  }
}

std::vector<char> readBytes(ByteReader& in) {
  const std::string bytes = in.string();
  return {bytes.begin(), bytes.end()};
}

} // namespace

std::vector<char> BlocksDone::encode() const {
  std::vector<char> body;
  ByteWriter out(body);
  out.number(static_cast<uint32_t>(blocks.size()));
  for (const Block& block : blocks) {
    out.number(block.id);
    out.string(block.error);
    writeDevice(out, block.from);
    writeDevice(out, block.to);
  }
  return body;
}

BlocksDone BlocksDone::decode(const std::vector<char>& body) {
  ByteReader in(body);
  BlocksDone done;
  done.blocks.resize(in.count(sizeof(uint64_t) + sizeof(uint32_t)));
  for (Block& block : done.blocks) {
    block.id = in.number<uint64_t>();
    block.error = in.string();
    block.from = readDevice(in);
    block.to = readDevice(in);
  }
  expectEnd(in);
  return done;
}

std::vector<char> TrialRequest::encode() const {
  std::vector<char> body;
  ByteWriter out(body);
  writeDevice(out, to);
  out.string({ticket.data(), ticket.size()});
  out.string({expected.data(), expected.size()});
  return body;
}

TrialRequest TrialRequest::decode(const std::vector<char>& body) {
  ByteReader in(body);
  TrialRequest request;
  request.to = readDevice(in);
  request.ticket = readBytes(in);
  request.expected = readBytes(in);
  expectEnd(in);
  return request;
}

std::vector<char> LaneMessage::encode() const {
  std::vector<char> body;
  ByteWriter out(body);
  out.number(static_cast<uint8_t>(kind));
  out.number(lane);
  out.number(kept);
  out.number(sequence);
  out.string(error);
  return body;
}

LaneMessage LaneMessage::decode(const std::vector<char>& body) {
  ByteReader in(body);
  LaneMessage message;
  const auto kind = in.number<uint8_t>();
  if (kind > static_cast<uint8_t>(Kind::senderFailed)) {
    throw FormatError("a message about a lane is of the unknown kind " + std::to_string(kind));
  }
  message.kind = static_cast<Kind>(kind);
  message.lane = in.number<uint64_t>();
  message.kept = in.number<uint64_t>();
  message.sequence = in.number<uint64_t>();
  message.error = in.string();
  expectEnd(in);
  return message;
}

std::vector<char> LaneTrial::encode() const {
  std::vector<char> body;
  ByteWriter out(body);
  writeDevice(out, to);
  out.string(gpu);
  out.number(lane);
  out.string(id);
  out.string({expected.data(), expected.size()});
  return body;
}

LaneTrial LaneTrial::decode(const std::vector<char>& body) {
  ByteReader in(body);
  LaneTrial trial;
  trial.to = readDevice(in);
  trial.gpu = in.string();
  trial.lane = in.number<uint64_t>();
  trial.id = in.string();
  trial.expected = readBytes(in);
  expectEnd(in);
  return trial;
}

} // namespace torchwire::cuda
