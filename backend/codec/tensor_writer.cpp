#include "backend/codec/tensor_writer.h"

#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include "backend/wire/inline_limit.h"

namespace torchwire {
namespace {

// A range of a storage is sent whole unless the tensors view less than half of it and it is worth a copy.
constexpr size_t kScatterSlack = 4096;

StorageRange rangeOf(const at::Tensor& t) {
  const size_t item = t.element_size();
  const size_t begin = static_cast<size_t>(t.storage_offset()) * item;
  if (t.numel() == 0) { // which may stand beyond its storage, where nothing may be read
    const size_t end = std::min(begin, t.storage().nbytes() / item * item);
    return {end, end};
  }
  if (t.is_contiguous()) { // as most are, and known of each
    return {begin, begin + static_cast<size_t>(t.numel()) * item};
  }
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) {
    last += (t.size(d) - 1) * t.stride(d);
  }
  return {begin, begin + (static_cast<size_t>(last) + 1) * item};
}

/// A copy that is as dense as clone() makes it. clone() has no code for dtypes like int4, which are bytes to PyTorch.
at::Tensor denseCopy(const at::Tensor& t) {
  return t.element_size() == 1 && !t.is_quantized() && !t.is_neg()
      ? t.view(at::kByte).clone().view(t.scalar_type())
      : t.clone();
}

size_t usefulBytes(const at::Tensor& t) {
  return std::min(static_cast<size_t>(t.numel()) * t.element_size(), rangeOf(t).length());
}

[[noreturn]] void refuse(const at::Tensor& t, const std::string& why) {
  TORCH_CHECK(
      false, "cannot send a tensor of shape ", t.sizes(), ", layout ", t.layout(), " and device ",
      t.device(), " over RPC: ", why);
}

TensorKind kindOfTensor(const at::Tensor& t) {
  if (!t.defined()) {
    return TensorKind::undefined;
  }
  if (t.is_nested()) { // which has no shape to ask for
    TORCH_CHECK(
        false,
        "cannot send a nested tensor over RPC: send its components, which unbind() gives, "
        "and make a nested tensor of them where they arrive");
  }
  if (!t.device().is_cpu()) {
    refuse(t, "it is not on the CPU, nor has it been copied there");
  }
  switch (t.layout()) {
    case at::kStrided:
      break;
    case at::kSparse:
      return TensorKind::sparseCoo;
    case at::kSparseCsr:
    case at::kSparseCsc:
    case at::kSparseBsr:
    case at::kSparseBsc:
      return TensorKind::sparseCompressed;
    default:
      refuse(t, "this layout is not supported; convert it with .to_dense()");
  }
  if (!t.has_storage()) {
    refuse(
        t, "it has no storage; a tensor subclass or a tensor of functorch must be unwrapped first");
  }
  // One whose storage was made smaller, or that packs several elements into a byte (quint4x2).
  if (rangeOf(t).end > t.storage().nbytes()) {
    refuse(t, "its elements reach beyond its storage");
  }
  if (!t.is_quantized()) {
    return TensorKind::strided;
  }
  switch (t.qscheme()) {
    case at::kPerTensorAffine:
      return TensorKind::quantizedPerTensor;
    case at::kPerChannelAffine:
      return TensorKind::quantizedPerChannel;
    default:
      refuse(t, "this quantization scheme is not supported; send it dequantized");
  }
}

/// The strided tensors that make up a sparse or per-channel quantized one.
std::vector<at::Tensor> componentsOf(const at::Tensor& t, TensorKind kind) {
  switch (kind) {
    case TensorKind::sparseCoo:
      return {t._indices(), t._values()};
    case TensorKind::sparseCompressed: {
      auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(t);
      return {compressed, plain, t.values()};
    }
    case TensorKind::quantizedPerChannel:
      return {t.q_per_channel_scales(), t.q_per_channel_zero_points()};
    default:
      return {};
  }
}

} // namespace

std::shared_ptr<void> TensorWriter::write(
    const std::vector<at::Tensor>& tensors, const TensorTargets& targets) {
  out_.number(static_cast<uint32_t>(tensors.size()));
  if (tensors.empty()) {
    return nullptr;
  }
  const at::NoGradGuard noGrad;
  for (const at::Tensor& t : tensors) {
    collect(t);
  }
  markScattered();
  for (size_t i = 0; i < tensors.size(); ++i) {
    describe(
        tensors[i], targets.devices.empty() ? c10::Device(c10::kCPU) : targets.devices[i],
        targets.isTicket(i));
  }
  writeStorages();
  return kept_;
}

void TensorWriter::collect(const at::Tensor& t) {
  const TensorKind kind = kindOfTensor(t);
  if (hasOwnStorage(kind)) {
    const StorageRange range = rangeOf(t);
    Shared* shared = find(t);
    if (shared == nullptr) {
      shared_.push_back({t.storage().unsafeGetStorageImpl(), t, range, 0, 1});
      shared = &shared_.back();
    }
    shared->item = std::max(shared->item, static_cast<size_t>(t.element_size()));
    shared->range.begin = std::min(shared->range.begin, range.begin);
    shared->range.end = std::max(shared->range.end, range.end);
    shared->useful += usefulBytes(t);
  }
  for (const at::Tensor& component : componentsOf(t, kind)) {
    collect(component);
  }
}

TensorWriter::Shared* TensorWriter::find(const at::Tensor& t) {
  auto* storage = t.storage().unsafeGetStorageImpl();
  const auto it = std::find_if(shared_.begin(), shared_.end(), [&](const Shared& s) {
    return s.storage == storage && !s.scattered;
  });
  return it == shared_.end() ? nullptr : &*it;
}

void TensorWriter::markScattered() {
  for (Shared& shared : shared_) {
    // Offsets stay multiples of the element sizes, which are powers of two, also where dtypes differ.
    shared.range.begin -= shared.range.begin % shared.item;
    shared.scattered = shared.range.length() > 2 * shared.useful + kScatterSlack;
  }
}

void TensorWriter::describe(const at::Tensor& t, c10::Device device, bool isTicket) {
  const TensorKind kind = kindOfTensor(t);
  out_.number(kind);
  if (kind == TensorKind::undefined) {
    return;
  }
  const int flags = (t.requires_grad() ? kRequiresGrad : 0) | (device.is_cpu() ? 0 : kForDevice) |
      (isTicket ? kTicket : 0);
  out_.number(static_cast<uint8_t>(flags));
  out_.number(static_cast<int8_t>(t.scalar_type()));
  if (!device.is_cpu()) {
    out_.number(static_cast<int8_t>(device.type()));
    out_.number(static_cast<int8_t>(device.index()));
  }
  writeNumbers(t.sizes());
  writeKindFields(t, kind);
  if (hasOwnStorage(kind)) {
    describeStorage(t);
  }
  for (const at::Tensor& component : componentsOf(t, kind)) {
    describe(component);
  }
}

void TensorWriter::writeKindFields(const at::Tensor& t, TensorKind kind) {
  switch (kind) {
    case TensorKind::sparseCoo:
      out_.number(static_cast<uint8_t>(t.is_coalesced() ? kCoalesced : 0));
      break;
    case TensorKind::sparseCompressed:
      out_.number(static_cast<int8_t>(t.layout()));
      break;
    case TensorKind::quantizedPerTensor:
      out_.number(t.q_scale());
      out_.number(t.q_zero_point());
      break;
    case TensorKind::quantizedPerChannel:
      out_.number(t.q_per_channel_axis());
      break;
    default:
      break;
  }
}

void TensorWriter::describeStorage(const at::Tensor& original) {
  at::Tensor t = original;
  Shared* shared = find(t);
  if (shared == nullptr) { // scattered: send a dense copy of its own
    t = denseCopy(original);
    const auto item = static_cast<size_t>(t.element_size());
    shared_.push_back({t.storage().unsafeGetStorageImpl(), t, rangeOf(t), 0, item});
    shared = &shared_.back();
  }
  const int bits = (t.is_conj() ? kConjugate : 0) | (t.is_neg() ? kNegative : 0);
  out_.number(static_cast<uint8_t>(bits));
  writeNumbers(t.strides());
  out_.number(static_cast<uint32_t>(shared - shared_.data()));
  out_.number(static_cast<uint64_t>(rangeOf(t).begin));
}

void TensorWriter::writeNumbers(at::IntArrayRef numbers) {
  out_.number(static_cast<uint32_t>(numbers.size()));
  for (const int64_t n : numbers) {
    out_.number(n);
  }
}

void TensorWriter::writeStorages() {
  const size_t limit = inlineLimit();
  out_.number(static_cast<uint32_t>(shared_.size()));
  for (const Shared& shared : shared_) {
    const size_t length = shared.scattered ? 0 : shared.range.length();
    const bool inHead = length == 0 || length < limit;
    const StoragePlacement placement =
        inHead ? StoragePlacement::inHead : StoragePlacement::onChannel;
    out_.number(static_cast<uint64_t>(shared.range.begin));
    out_.number(static_cast<uint64_t>(length));
    out_.number(placement);
    if (length == 0) {
      continue;
    }
    const auto* data = static_cast<const char*>(shared.storage->data()) + shared.range.begin;
    if (placement == StoragePlacement::inHead) {
      out_.raw(data, length);
    } else {
      sendOnChannel(shared, data, length);
    }
  }
}

void TensorWriter::sendOnChannel(const Shared& shared, const char* data, size_t length) {
  at::Tensor owner = shared.any;
  // Memory that came from at::from_blob without a deleter may be gone before the frame is.
  if (shared.storage->data_ptr().get_context() == nullptr) {
    owner = at::empty({static_cast<int64_t>(length)}, at::kByte);
    std::memcpy(owner.mutable_data_ptr(), data, length);
    data = static_cast<const char*>(owner.const_data_ptr());
  }
  frame_.tensors.push_back({data, length});
  kept_->push_back(std::move(owner));
}

} // namespace torchwire
