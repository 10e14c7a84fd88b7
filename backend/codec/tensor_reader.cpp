#include "backend/codec/tensor_reader.h"

#include <ATen/ATen.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

namespace torchwire {
namespace {

c10::Storage makeStorage(size_t length, at::DataPtr data) {
  return c10::Storage(
      c10::Storage::use_byte_size_t(), length, std::move(data), c10::GetCPUAllocator(), true);
}

c10::Storage copyOf(const char* bytes, size_t length) {
  at::DataPtr data = c10::GetCPUAllocator()->allocate(length);
  if (length != 0) {
    std::memcpy(data.get(), bytes, length);
  }
  return makeStorage(length, std::move(data));
}

c10::Storage viewOf(Blob blob) {
  auto* owner = new std::shared_ptr<void>(std::move(blob.data));
  at::DataPtr data(
      owner->get(), owner,
      [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); }, at::kCPU);
  return makeStorage(blob.length, std::move(data));
}

} // namespace

DecodedTensors TensorReader::read() {
  const uint32_t count = in_.count(1);
  if (count == 0) {
    return {};
  }
  std::vector<Description> descriptions;
  descriptions.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    descriptions.push_back(readDescription());
  }
  readStorages();
  DecodedTensors decoded;
  decoded.tensors.reserve(count);
  int flags = 0;
  for (const Description& description : descriptions) {
    decoded.tensors.push_back(build(description));
    flags |= description.flags;
  }
  for (const Description& description : descriptions) {
    if ((flags & kForDevice) != 0) {
      decoded.targets.devices.push_back(description.device);
    }
    if ((flags & kTicket) != 0) {
      decoded.targets.tickets.push_back((description.flags & kTicket) != 0);
    }
  }
  return decoded;
}

std::vector<int64_t> TensorReader::readNumbers() {
  std::vector<int64_t> numbers(in_.count(sizeof(int64_t)));
  for (int64_t& n : numbers) {
    n = in_.number<int64_t>();
  }
  return numbers;
}

TensorKind TensorReader::readKind() {
  const auto kind = in_.number<uint8_t>();
  if (kind > static_cast<uint8_t>(TensorKind::quantizedPerChannel)) {
    throw FormatError("a tensor of unknown kind " + std::to_string(kind));
  }
  return static_cast<TensorKind>(kind);
}

c10::Device TensorReader::readDevice() {
  const auto type = in_.number<int8_t>();
  const auto index = in_.number<int8_t>();
  if (type <= 0 || type >= c10::COMPILE_TIME_MAX_DEVICE_TYPES || index < 0) {
    throw FormatError(
        "a tensor for an unknown device: type " + std::to_string(type) + ", index " +
        std::to_string(index));
  }
  return {static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index)};
}

TensorReader::Description TensorReader::readDescription() {
  return readDescription(readKind());
}

TensorReader::Description TensorReader::readDescription(TensorKind kind) {
  Description d;
  d.kind = kind;
  if (d.kind == TensorKind::undefined) {
    return d;
  }
  d.flags = in_.number<uint8_t>();
  const auto dtype = in_.number<int8_t>();
  if (dtype < 0 || dtype >= static_cast<int8_t>(at::ScalarType::Undefined)) {
    throw FormatError("a tensor of unknown dtype " + std::to_string(dtype));
  }
  d.dtype = static_cast<at::ScalarType>(dtype);
  if ((d.flags & kForDevice) != 0) {
    d.device = readDevice();
  }
  const bool canBeTicket =
      d.kind == TensorKind::strided && d.dtype == at::kByte && !d.device.is_cpu();
  if ((d.flags & kTicket) != 0 && !canBeTicket) {
    throw FormatError("a ticket for a tensor is no tensor of bytes, or for no device");
  }
  d.sizes = readNumbers();
  readKindFields(d);
  if (hasOwnStorage(d.kind)) {
    d.flags |= in_.number<uint8_t>();
    d.strides = readNumbers();
    d.storage = in_.number<uint32_t>();
    d.offset = in_.number<uint64_t>();
    checkShape(d);
  }
  readComponents(d);
  return d;
}

void TensorReader::readKindFields(Description& d) {
  switch (d.kind) {
    case TensorKind::sparseCoo:
      d.flags |= in_.number<uint8_t>();
      break;
    case TensorKind::sparseCompressed:
      d.layout = static_cast<at::Layout>(in_.number<int8_t>());
      break;
    case TensorKind::quantizedPerTensor:
      d.scale = in_.number<double>();
      d.zeroPointOrAxis = in_.number<int64_t>();
      break;
    case TensorKind::quantizedPerChannel:
      d.zeroPointOrAxis = in_.number<int64_t>();
      break;
    default:
      break;
  }
}

void TensorReader::readComponents(Description& d) {
  const size_t count = d.kind == TensorKind::sparseCompressed                        ? 3
      : d.kind == TensorKind::sparseCoo || d.kind == TensorKind::quantizedPerChannel ? 2
                                                                                     : 0;
  for (size_t i = 0; i < count; ++i) {
    // Before the rest is read: components within components could go deeper than the stack.
    if (readKind() != TensorKind::strided) {
      throw FormatError("a component that is no strided tensor");
    }
    d.components.push_back(readDescription(TensorKind::strided));
    if (!d.components.back().device.is_cpu()) {
      throw FormatError("a component that is for a device of its own");
    }
  }
}

void TensorReader::checkShape(const Description& d) {
  const bool negative =
      std::any_of(d.sizes.begin(), d.sizes.end(), [](int64_t n) { return n < 0; }) ||
      std::any_of(d.strides.begin(), d.strides.end(), [](int64_t n) { return n < 0; });
  if (negative || d.sizes.size() != d.strides.size()) {
    throw FormatError("a tensor with an impossible shape");
  }
}

void TensorReader::readStorages() {
  const uint32_t count = in_.count(2 * sizeof(uint64_t) + 1);
  size_t nextBlob = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const auto begin = in_.number<uint64_t>();
    const auto length = in_.number<uint64_t>();
    const auto placement = in_.number<StoragePlacement>();
    if (placement == StoragePlacement::inHead) {
      storages_.push_back({copyOf(in_.raw(length), length), begin});
      continue;
    }
    if (nextBlob == blobs_.size() || blobs_[nextBlob].length != length) {
      throw FormatError("a storage whose bytes did not come");
    }
    storages_.push_back({viewOf(std::move(blobs_[nextBlob++])), begin});
  }
}

at::Tensor TensorReader::build(const Description& d) {
  at::Tensor t;
  switch (d.kind) {
    case TensorKind::undefined:
      return t;
    case TensorKind::sparseCoo:
      t = at::_sparse_coo_tensor_unsafe(
          build(d.components[0]), build(d.components[1]), d.sizes,
          at::TensorOptions(d.dtype).layout(at::kSparse), (d.flags & kCoalesced) != 0);
      break;
    case TensorKind::sparseCompressed:
      t = at::_sparse_compressed_tensor_unsafe(
          build(d.components[0]), build(d.components[1]), build(d.components[2]), d.sizes,
          at::TensorOptions(d.dtype).layout(d.layout));
      break;
    default:
      t = buildOnStorage(d);
  }
  if ((d.flags & kRequiresGrad) != 0) {
    t.set_requires_grad(true);
  }
  return t;
}

at::Tensor TensorReader::buildOnStorage(const Description& d) {
  const auto [storage, elements] = placeInStorage(d);
  at::Tensor t;
  if (d.kind == TensorKind::strided) {
    t = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
        at::scalarTypeToTypeMeta(d.dtype));
  } else {
    const at::TensorOptions options(d.dtype);
    t = d.kind == TensorKind::quantizedPerTensor
        ? at::_empty_affine_quantized({0}, options, d.scale, d.zeroPointOrAxis)
        : at::_empty_per_channel_affine_quantized(
              {0}, build(d.components[0]), build(d.components[1]), d.zeroPointOrAxis, options);
    t.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  }
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_offset(elements);
  impl->set_sizes_and_strides(d.sizes, d.strides);
  if ((d.flags & kConjugate) != 0) {
    t._set_conj(true);
  }
  if ((d.flags & kNegative) != 0) {
    t._set_neg(true);
  }
  return t;
}

uint64_t TensorReader::elementsSpanned(const Description& d) {
  if (std::find(d.sizes.begin(), d.sizes.end(), 0) != d.sizes.end()) {
    return 0;
  }
  unsigned __int128 last = 0; // numbers of a hostile peer must not wrap around
  for (size_t i = 0; i < d.sizes.size() && last < SIZE_MAX; ++i) {
    last += static_cast<unsigned __int128>(d.sizes[i] - 1) * static_cast<uint64_t>(d.strides[i]);
  }
  return last < SIZE_MAX ? static_cast<uint64_t>(last) + 1 : SIZE_MAX;
}

std::pair<c10::Storage, int64_t> TensorReader::placeInStorage(const Description& d) {
  if (d.storage >= storages_.size()) {
    throw FormatError("a tensor whose storage did not come");
  }
  const Received& received = storages_[d.storage];
  const size_t item = c10::elementSize(d.dtype);
  const uint64_t offset = d.offset - received.begin;
  if (d.offset < received.begin || offset % item != 0 || offset > received.storage.nbytes() ||
      elementsSpanned(d) > (received.storage.nbytes() - offset) / item) {
    throw FormatError("a tensor that reaches beyond its storage");
  }
  return {received.storage, static_cast<int64_t>(offset / item)};
}

} // namespace torchwire
