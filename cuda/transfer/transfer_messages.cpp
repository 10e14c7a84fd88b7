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

} // namespace torchwire::cuda
