#include "cuda/transfer/tensor_ticket.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "backend/base/bytes.h"

namespace torchwire::cuda {
namespace {

void writeTensor(ByteWriter& out, const TensorTicket& ticket) {
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
}

void writeBlock(ByteWriter& out, const TensorTicket& ticket) {
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

c10::Device readSource(ByteReader& in) {
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

void readTensor(ByteReader& in, TensorTicket& ticket) {
  ticket.dtype = readDtype(in);
  ticket.requiresGrad = in.number<uint8_t>() != 0;
  ticket.sizes.resize(in.count(sizeof(int64_t)));
  for (int64_t& size : ticket.sizes) {
    size = in.number<int64_t>();
  }
  ticket.order = readOrder(in, ticket.sizes.size());
  ticket.from = readSource(in);
  ticket.bytes(); // throws
}

void readBlock(ByteReader& in, TensorTicket& ticket) {
  ticket.block.id = in.number<uint64_t>();
  ticket.block.kept = in.number<uint8_t>() != 0;
  ticket.block.memoryHandle = in.string();
  ticket.block.eventHandle = in.string();
}

/// The tensor's dimensions as they lie in memory, the one with the largest stride first. Empty: as they are.
std::vector<int64_t> orderInMemory(const at::Tensor& tensor) {
  if (tensor.is_contiguous() || !tensor.is_non_overlapping_and_dense()) {
    return {};
  }
  std::vector<int64_t> order(tensor.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return tensor.stride(a) > tensor.stride(b);
  });
  return order;
}

std::vector<int64_t> inverseOf(const std::vector<int64_t>& order) {
  std::vector<int64_t> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    inverse[order[i]] = static_cast<int64_t>(i);
  }
  return inverse;
}

} // namespace

at::Tensor TensorTicket::describe(const at::Tensor& tensor) {
  const auto inMemory = orderInMemory(tensor);
  at::Tensor view = inMemory.empty() ? tensor : tensor.permute(inMemory);
  dtype = tensor.scalar_type();
  requiresGrad = tensor.requires_grad();
  sizes = view.sizes().vec();
  order = inverseOf(inMemory);
  from = tensor.device();
  return view;
}

at::Tensor TensorTicket::restore(at::Tensor elements) const {
  if (!order.empty()) {
    elements = elements.permute(order);
  }
  return elements.set_requires_grad(requiresGrad);
}

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
  if (path != DevicePath::process) {
    writeTensor(out, *this);
  }
  if (path == DevicePath::ipc) {
    writeBlock(out, *this);
  } else {
    out.number(number);
  }
  if (path == DevicePath::nccl) {
    out.number(lane);
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
  switch (ticket.path) {
    case DevicePath::process:
      ticket.number = in.number<uint64_t>();
      break;
    case DevicePath::ipc:
      readTensor(in, ticket);
      readBlock(in, ticket);
      break;
    case DevicePath::nccl:
      readTensor(in, ticket);
      ticket.number = in.number<uint64_t>();
      ticket.lane = in.number<uint64_t>();
      break;
    default:
      throw FormatError("a ticket for a tensor by an unknown path");
  }
  if (in.remaining() != 0) {
    throw FormatError("a ticket for a tensor has bytes that are not its own");
  }
  return ticket;
}

} // namespace torchwire::cuda
