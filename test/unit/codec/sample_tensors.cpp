#include "test/unit/codec/sample_tensors.h"

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/quantize_per_channel.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "backend/codec/tensor_codec.h"

namespace torchwire {
namespace {

int64_t between(int64_t lowest, int64_t highest, std::mt19937& random) {
  return std::uniform_int_distribution<int64_t>(lowest, highest)(random);
}

bool perhaps(std::mt19937& random) {
  return between(0, 1, random) == 1;
}

template <typename T>
T oneOf(const std::vector<T>& all, std::mt19937& random) {
  return all[static_cast<size_t>(between(0, static_cast<int64_t>(all.size()) - 1, random))];
}

bool isQuantizedType(at::ScalarType dtype) {
  return c10::isQIntType(dtype);
}

bool canRequireGrad(const at::Tensor& t) {
  return c10::isFloatingType(t.scalar_type()) || c10::isComplexType(t.scalar_type());
}

/// Any view that lies within the base: slices, transposes, what is expanded or overlaps, what is empty.
at::Tensor randomView(const at::Tensor& base, std::mt19937& random) {
  const int64_t offset = between(0, base.numel(), random);
  int64_t room = base.numel() - offset; // elements that may be reached
  if (room == 0) {
    return base.as_strided({0}, {1}, offset);
  }
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  for (int64_t dims = between(0, 4, random); dims > 0; --dims) {
    const int64_t stride = between(0, 6, random);
    const int64_t most = stride == 0 ? 4 : std::min<int64_t>(4, (room - 1) / stride + 1);
    sizes.push_back(between(between(0, 9, random) == 0 ? 0 : 1, most, random));
    strides.push_back(stride);
    room -= std::max<int64_t>(sizes.back() - 1, 0) * stride;
  }
  return base.as_strided(sizes, strides, offset);
}

at::Tensor randomBits(at::Tensor t, std::mt19937& random) {
  if (t.is_complex() && perhaps(random)) {
    t = at::_conj(t);
  }
  if ((t.is_complex() || c10::isFloatingType(t.scalar_type())) && perhaps(random)) {
    t = at::_neg_view(t);
  }
  return t;
}

at::Tensor randomStrided(std::mt19937& random) {
  const at::Tensor base = randomBytes(oneOf(plainDtypes(), random), between(0, 40, random), random);
  return randomBits(randomView(base, random), random);
}

at::Tensor randomCoo(std::mt19937& random) {
  const int64_t nonzeros = between(0, 4, random);
  const at::Tensor indices = at::empty({2, nonzeros}, at::kLong);
  for (int64_t i = 0; i < 2 * nonzeros; ++i) {
    indices.mutable_data_ptr<int64_t>()[i] = between(0, 4, random);
  }
  const at::ScalarType dtype =
      oneOf<at::ScalarType>({at::kFloat, at::kDouble, at::kLong, at::kComplexFloat}, random);
  const bool hybrid = perhaps(random);
  const at::Tensor values = randomBytes(dtype, nonzeros * (hybrid ? 3 : 1), random);
  const at::Tensor t = hybrid
      ? at::sparse_coo_tensor(indices, values.reshape({nonzeros, 3}), {5, 5, 3})
      : at::sparse_coo_tensor(indices, values, {5, 5});
  return perhaps(random) ? t.coalesce() : t;
}

at::Tensor randomCompressed(std::mt19937& random) {
  const auto layout =
      oneOf<at::Layout>({at::kSparseCsr, at::kSparseCsc, at::kSparseBsr, at::kSparseBsc}, random);
  const bool inBlocks = layout == at::kSparseBsr || layout == at::kSparseBsc;
  const at::Tensor dense = mostlyZeros(
      {2 * between(0, 3, random), 3 * between(0, 3, random)},
      oneOf<at::ScalarType>({at::kFloat, at::kDouble, at::kComplexDouble}, random));
  const std::vector<int64_t> block = {2, 3};
  return dense.to_sparse(
      layout, inBlocks ? at::OptionalIntArrayRef(block) : at::OptionalIntArrayRef());
}

at::Tensor randomQuantized(std::mt19937& random) {
  const at::Tensor plain = at::arange(12, at::kFloat).reshape({3, 4});
  const auto dtype = oneOf<at::ScalarType>({at::kQInt8, at::kQUInt8, at::kQInt32}, random);
  if (perhaps(random)) {
    const at::Tensor t = at::quantize_per_tensor(plain, 0.25, between(0, 9, random), dtype);
    return perhaps(random) ? t.t() : t;
  }
  const int64_t axis = between(0, 1, random);
  const at::Tensor scales = at::arange(1, plain.size(axis) + 1, at::kDouble);
  const at::Tensor zeroPoints = at::arange(plain.size(axis), at::kLong);
  return at::quantize_per_channel(plain, scales, zeroPoints, axis, dtype);
}

// ---- comparing ---------------------------------------------------------------------------------------

/// The bytes of all elements, in order. Works for dtypes that PyTorch itself can do nothing with.
std::string bytesOf(const at::Tensor& t) {
  std::string bytes;
  const size_t item = t.element_size();
  const char* data =
      static_cast<const char*>(t.storage().data()) + static_cast<size_t>(t.storage_offset()) * item;
  std::vector<int64_t> position(static_cast<size_t>(t.dim()), 0);
  for (int64_t n = 0; n < t.numel(); ++n) {
    int64_t element = 0;
    for (int64_t d = 0; d < t.dim(); ++d) {
      element += position[static_cast<size_t>(d)] * t.stride(d);
    }
    bytes.append(data + static_cast<size_t>(element) * item, item);
    for (int64_t d = t.dim() - 1; d >= 0 && ++position[static_cast<size_t>(d)] == t.size(d); --d) {
      position[static_cast<size_t>(d)] = 0;
    }
  }
  return bytes;
}

using Parts = std::vector<std::pair<std::string, at::Tensor>>;

Parts partsOf(const at::Tensor& t) {
  if (t.layout() == at::kSparse) {
    return {{"indices", t._indices()}, {"values", t._values()}};
  }
  if (t.layout() != at::kStrided) {
    auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(t);
    return {{"compressed indices", compressed}, {"plain indices", plain}, {"values", t.values()}};
  }
  if (t.is_quantized() && t.qscheme() == at::kPerChannelAffine) {
    return {{"scales", t.q_per_channel_scales()}, {"zero points", t.q_per_channel_zero_points()}};
  }
  return {};
}

std::string ownDifference(const at::Tensor& sent, const at::Tensor& received, bool withStrides) {
  if (sent.scalar_type() != received.scalar_type()) {
    return "dtype";
  }
  if (sent.layout() != received.layout()) {
    return "layout";
  }
  if (sent.sizes() != received.sizes()) {
    return "sizes";
  }
  if (sent.requires_grad() != received.requires_grad()) {
    return "requires_grad";
  }
  if (sent.is_quantized() != received.is_quantized()) {
    return "quantization";
  }
  if (sent.layout() != at::kStrided) {
    const bool coo = sent.layout() == at::kSparse;
    return coo && sent.is_coalesced() != received.is_coalesced() ? "is_coalesced" : "";
  }
  if (withStrides && sent.strides() != received.strides()) {
    return "strides";
  }
  if (sent.is_conj() != received.is_conj() || sent.is_neg() != received.is_neg()) {
    return "bits";
  }
  if (sent.is_quantized() &&
      (sent.qscheme() != received.qscheme() ||
       (sent.qscheme() == at::kPerTensorAffine
            ? sent.q_scale() != received.q_scale() || sent.q_zero_point() != received.q_zero_point()
            : sent.q_per_channel_axis() != received.q_per_channel_axis()))) {
    return "quantizer";
  }
  return bytesOf(sent) == bytesOf(received) ? "" : "content";
}

std::string differenceIn(const at::Tensor& sent, const at::Tensor& received, bool withStrides) {
  const at::NoGradGuard noGrad;
  if (!sent.defined() || !received.defined()) {
    return sent.defined() == received.defined() ? "" : "defined";
  }
  std::string found = ownDifference(sent, received, withStrides);
  if (!found.empty()) {
    return found;
  }
  const Parts expected = partsOf(sent);
  const Parts parts = partsOf(received);
  for (size_t i = 0; i < parts.size(); ++i) {
    found = differenceIn(expected[i].second, parts[i].second, withStrides);
    if (!found.empty()) {
      return found + " of " + parts[i].first;
    }
  }
  return "";
}

} // namespace

std::vector<at::ScalarType> plainDtypes() {
  std::vector<at::ScalarType> dtypes;
  for (int i = 0; i < static_cast<int>(at::ScalarType::Undefined); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    if (!isQuantizedType(dtype)) {
      dtypes.push_back(dtype);
    }
  }
  return dtypes;
}

at::Tensor randomBytes(at::ScalarType dtype, int64_t elements, std::mt19937& random) {
  at::Tensor t = at::empty({elements}, dtype);
  auto* bytes = static_cast<unsigned char*>(t.mutable_data_ptr());
  for (size_t i = 0; i < t.nbytes(); ++i) {
    bytes[i] = static_cast<unsigned char>(random() & (dtype == at::kBool ? 1 : 0xff));
  }
  return t;
}

at::Tensor mostlyZeros(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor t = at::zeros(sizes, at::kDouble);
  for (int64_t i = 0; i < t.numel(); i += 3) {
    t.mutable_data_ptr<double>()[i] = static_cast<double>(i + 1);
  }
  return t.to(dtype);
}

at::Tensor randomTensor(std::mt19937& random) {
  const at::NoGradGuard noGrad;
  at::Tensor t;
  switch (between(0, 9, random)) {
    case 0:
      return t; // undefined
    case 1:
    case 2:
      t = randomCoo(random);
      break;
    case 3:
    case 4:
      t = randomCompressed(random);
      break;
    case 5:
      t = randomQuantized(random);
      break;
    default:
      t = randomStrided(random);
  }
  if (!t.is_quantized() && canRequireGrad(t) && perhaps(random)) {
    t.set_requires_grad(true);
  }
  return t;
}

std::vector<at::Tensor> randomRelatives(std::mt19937& random) {
  const at::NoGradGuard noGrad;
  const at::Tensor base = randomBytes(oneOf(plainDtypes(), random), between(0, 40, random), random);
  return {randomView(base, random), randomView(base, random)};
}

std::vector<at::Tensor> throughFrame(const std::vector<at::Tensor>& tensors) {
  OutgoingFrame frame;
  const std::shared_ptr<void> kept = encodeTensors(tensors, frame);
  IncomingFrame arrived = loopBack(std::move(frame));
  ByteReader in(arrived.head);
  std::vector<at::Tensor> received = decodeTensors(in, arrived.tensors).tensors;
  if (in.remaining() != 0) {
    throw std::runtime_error("the table was not read to its end");
  }
  return received;
}

at::Tensor throughFrame(const at::Tensor& tensor) {
  return throughFrame(std::vector<at::Tensor>{tensor}).at(0);
}

std::string difference(const at::Tensor& sent, const at::Tensor& received) {
  return differenceIn(sent, received, true);
}

std::string differenceButStrides(const at::Tensor& sent, const at::Tensor& received) {
  return differenceIn(sent, received, false);
}

} // namespace torchwire
