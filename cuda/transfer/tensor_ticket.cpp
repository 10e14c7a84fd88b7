#include "cuda/transfer/tensor_ticket.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/safe_numerics.h>

#include <cstring>
#include <string>

#include "backend/base/bytes.h"

namespace torchwire::cuda {
namespace {

void writeIpc(ByteWriter& out, const TensorTicket& ticket) {
  out.number(static_cast<int8_t>(ticket.dtype));
  out.number(static_cast<uint8_t>(ticket.requiresGrad));
  out.number(static_cast<uint32_t>(ticket.sizes.size()));
  for (const int64_t size : ticket.sizes) {
    out.number(size);
  }
  out.number(static_cast<uint32_t>(ticket.order.size()));
  for (const int64_t dimension : ticket.order) {
    out.number(static_cast<uint32_t>(dimension));
  }
  out.number(static_cast<int8_t>(ticket.from.type()));
  out.number(static_cast<int8_t>(ticket.from.index()));
  out.number(ticket.block.id);
  out.number(static_cast<uint8_t>(ticket.block.kept));
  out.string(ticket.block.memoryHandle);
  out.string(ticket.block.eventHandle);
}

at::ScalarType readDtype(ByteReader& in) {
  const auto dtype = in.number<int8_t>();
  if (dtype < 0 || dtype >= static_cast<int8_t>(at::ScalarType::Undefined) ||
      at::isQIntType(static_cast<at::ScalarType>(dtype))) {
    throw FormatError("a ticket for a tensor of the unusable dtype " + std::to_string(dtype));
  }
  return static_cast<at::ScalarType>(dtype);
}

c10::Device readDevice(ByteReader& in) {
  const auto type = in.number<int8_t>();
  const auto index = in.number<int8_t>();
  if (type <= 0 || type >= c10::COMPILE_TIME_MAX_DEVICE_TYPES || index < 0) {
    throw FormatError("a ticket for a tensor from an unknown device");
  }
  return {static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index)};
}

std::vector<int64_t> readOrder(ByteReader& in, size_t dimensions) {
  std::vector<int64_t> order(in.count(sizeof(uint32_t)));
  std::vector<bool> seen(dimensions);
  for (int64_t& dimension : order) {
    dimension = in.number<uint32_t>();
    if (static_cast<size_t>(dimension) >= dimensions || seen[dimension]) {
      throw FormatError("a ticket for a tensor with dimensions in no order");
    }
    seen[dimension] = true;
  }
  if (!order.empty() && order.size() != dimensions) {
    throw FormatError("a ticket for a tensor with the order of other dimensions");
  }
  return order;
}

void readIpc(ByteReader& in, TensorTicket& ticket) {
  ticket.dtype = readDtype(in);
  ticket.requiresGrad = in.number<uint8_t>() != 0;
  ticket.sizes.resize(in.count(sizeof(int64_t)));
  for (int64_t& size : ticket.sizes) {
    size = in.number<int64_t>();
  }
  ticket.order = readOrder(in, ticket.sizes.size());
  ticket.from = readDevice(in);
  ticket.block.id = in.number<uint64_t>();
  ticket.block.kept = in.number<uint8_t>() != 0;
  ticket.block.memoryHandle = in.string();
  ticket.block.eventHandle = in.string();
  ticket.bytes(); // throws
}

} // namespace

size_t TensorTicket::bytes() const {
  uint64_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) {
    if (size < 0 || c10::mul_overflows(bytes, static_cast<uint64_t>(size), &bytes) ||
        bytes > INT64_MAX) {
      throw FormatError("a ticket for a tensor of impossible size");
    }
  }
  return bytes;
}

at::Tensor TensorTicket::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(static_cast<uint8_t>(path));
  if (path == DevicePath::process) {
    out.number(number);
  } else {
    writeIpc(out, *this);
  }
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

TensorTicket TensorTicket::decode(const at::Tensor& bytes) {
  const at::Tensor dense = bytes.contiguous();
  const auto* data = static_cast<const char*>(dense.const_data_ptr());
  const std::vector<char> copy(data, data + dense.numel());
  ByteReader in(copy);
  TensorTicket ticket;
  ticket.path = static_cast<DevicePath>(in.number<uint8_t>());
  if (ticket.path == DevicePath::process) {
    ticket.number = in.number<uint64_t>();
  } else if (ticket.path == DevicePath::ipc) {
    readIpc(in, ticket);
  } else {
    throw FormatError("a ticket for a tensor by an unknown path");
  }
  if (in.remaining() != 0) {
    throw FormatError("a ticket for a tensor has bytes that are not its own");
  }
  return ticket;
}

} // namespace torchwire::cuda
