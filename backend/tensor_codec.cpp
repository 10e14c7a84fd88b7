#include "backend/tensor_codec.h"

#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "backend/log.h"

namespace torchwire {
namespace {

enum class Kind : uint8_t {
  undefined = 0,
  strided = 1,
  sparseCoo = 2, // indices, values
  sparseCompressed = 3, // compressed indices, plain indices, values
  quantizedPerTensor = 4,
  quantizedPerChannel = 5, // scales, zero points
};

enum Flag : uint8_t {
  kRequiresGrad = 1,
  kConjugate = 2,
  kNegative = 4,
  kCoalesced = 8,
};

enum class Placement : uint8_t { inHead = 0, onChannel = 1 };

constexpr size_t kDefaultInlineLimit = 256 * 1024;
// A range of a storage is sent whole unless the tensors view less than half of it and it is worth a copy.
constexpr size_t kScatterSlack = 4096;

/// The bytes of its storage that a strided tensor touches: [begin, end).
struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t length() const {
    return end - begin;
  }
};

Range rangeOf(const at::Tensor& t) {
  const size_t item = t.element_size();
  const size_t begin = static_cast<size_t>(t.storage_offset()) * item;
  if (t.numel() == 0) {
    return {begin, begin};
  }
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) {
    last += (t.size(d) - 1) * t.stride(d);
  }
  return {begin, begin + (static_cast<size_t>(last) + 1) * item};
}

size_t usefulBytes(const at::Tensor& t) {
  return std::min(static_cast<size_t>(t.numel()) * t.element_size(), rangeOf(t).length());
}

[[noreturn]] void refuse(const at::Tensor& t, const std::string& why) {
  std::ostringstream shape; // a nested tensor has none to ask for
  if (!t.is_nested()) {
    shape << "of shape " << t.sizes() << ", ";
  }
  TORCH_CHECK(
      false,
      "cannot send a tensor ", shape.str(), "layout ", t.layout(), " and device ", t.device(),
      " over RPC: ", why);
}

Kind kindOfTensor(const at::Tensor& t) {
  if (!t.defined()) {
    return Kind::undefined;
  }
  if (t.is_nested()) {
    refuse(t, "nested tensors are not supported; send their components");
  }
  if (!t.device().is_cpu()) {
    refuse(t, "only CPU tensors are supported; move it with .cpu()");
  }
  switch (t.layout()) {
    case at::kStrided:
      break;
    case at::kSparse:
      return Kind::sparseCoo;
    case at::kSparseCsr:
    case at::kSparseCsc:
    case at::kSparseBsr:
    case at::kSparseBsc:
      return Kind::sparseCompressed;
    default:
      refuse(t, "this layout is not supported; convert it with .to_dense()");
  }
  if (!t.has_storage()) {
    refuse(t, "it has no storage; a tensor subclass or a tensor of functorch must be unwrapped first");
  }
  if (!t.is_quantized()) {
    return Kind::strided;
  }
  switch (t.qscheme()) {
    case at::kPerTensorAffine:
      return Kind::quantizedPerTensor;
    case at::kPerChannelAffine:
      return Kind::quantizedPerChannel;
    default:
      refuse(t, "this quantization scheme is not supported; send it dequantized");
  }
}

/// The strided tensors that make up a sparse or per-channel quantized one.
std::vector<at::Tensor> componentsOf(const at::Tensor& t, Kind kind) {
  switch (kind) {
    case Kind::sparseCoo:
      return {t._indices(), t._values()};
    case Kind::sparseCompressed: {
      auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(t);
      return {compressed, plain, t.values()};
    }
    case Kind::quantizedPerChannel:
      return {t.q_per_channel_scales(), t.q_per_channel_zero_points()};
    default:
      return {};
  }
}

bool hasOwnStorage(Kind kind) {
  return kind == Kind::strided || kind == Kind::quantizedPerTensor ||
      kind == Kind::quantizedPerChannel;
}

// ---- encoding -----------------------------------------------------------------------------------

/// What keeps a frame's segments alive: the tensors, and copies of memory that PyTorch does not own.
struct Kept {
  std::vector<at::Tensor> tensors;
};

class TableWriter {
 public:
  explicit TableWriter(OutgoingFrame& frame) : frame_(frame), out_(frame.head) {}

  std::shared_ptr<void> write(const std::vector<at::Tensor>& tensors) {
    out_.number(static_cast<uint32_t>(tensors.size()));
    if (tensors.empty()) {
      return nullptr;
    }
    const at::NoGradGuard noGrad;
    for (const at::Tensor& t : tensors) {
      collect(t);
    }
    markScattered();
    for (const at::Tensor& t : tensors) {
      describe(t);
    }
    writeStorages();
    return kept_;
  }

 private:
  struct Shared { // a storage that is sent, and the part of it that is needed
    c10::StorageImpl* storage;
    at::Tensor any; // keeps it alive
    Range range;
    size_t useful;
    size_t item; // the largest element size of the tensors that share it
    bool scattered = false;
  };

  // First look: which storages, and how much of each.
  void collect(const at::Tensor& t) {
    const Kind kind = kindOfTensor(t);
    if (hasOwnStorage(kind)) {
      const Range range = rangeOf(t);
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

  Shared* find(const at::Tensor& t) {
    auto* storage = t.storage().unsafeGetStorageImpl();
    const auto it = std::find_if(shared_.begin(), shared_.end(), [&](const Shared& s) {
      return s.storage == storage && !s.scattered;
    });
    return it == shared_.end() ? nullptr : &*it;
  }

  void markScattered() {
    for (Shared& shared : shared_) {
      // Offsets stay multiples of the element sizes, which are powers of two, also where dtypes differ.
      shared.range.begin -= shared.range.begin % shared.item;
      shared.scattered = shared.range.length() > 2 * shared.useful + kScatterSlack;
    }
  }

  void describe(const at::Tensor& t) {
    const Kind kind = kindOfTensor(t);
    out_.number(kind);
    if (kind == Kind::undefined) {
      return;
    }
    out_.number(static_cast<uint8_t>(t.requires_grad() ? kRequiresGrad : 0));
    out_.number(static_cast<int8_t>(t.scalar_type()));
    writeNumbers(t.sizes());
    switch (kind) {
      case Kind::sparseCoo:
        out_.number(static_cast<uint8_t>(t.is_coalesced() ? kCoalesced : 0));
        break;
      case Kind::sparseCompressed:
        out_.number(static_cast<int8_t>(t.layout()));
        break;
      case Kind::quantizedPerTensor:
        out_.number(t.q_scale());
        out_.number(t.q_zero_point());
        break;
      case Kind::quantizedPerChannel:
        out_.number(t.q_per_channel_axis());
        break;
      default:
        break;
    }
    if (hasOwnStorage(kind)) {
      describeStorage(t);
    }
    for (const at::Tensor& component : componentsOf(t, kind)) {
      describe(component);
    }
  }

  void describeStorage(const at::Tensor& original) {
    at::Tensor t = original;
    Shared* shared = find(t);
    if (shared == nullptr) { // scattered: send a dense copy of its own
      t = original.clone();
      shared_.push_back({t.storage().unsafeGetStorageImpl(), t, rangeOf(t), 0, static_cast<size_t>(t.element_size())});
      shared = &shared_.back();
    }
    const int bits = (t.is_conj() ? kConjugate : 0) | (t.is_neg() ? kNegative : 0);
    out_.number(static_cast<uint8_t>(bits));
    writeNumbers(t.strides());
    out_.number(static_cast<uint32_t>(shared - shared_.data()));
    out_.number(static_cast<uint64_t>(rangeOf(t).begin));
  }

  void writeNumbers(at::IntArrayRef numbers) {
    out_.number(static_cast<uint32_t>(numbers.size()));
    for (const int64_t n : numbers) {
      out_.number(n);
    }
  }

  void writeStorages() {
    const size_t limit = inlineLimit();
    out_.number(static_cast<uint32_t>(shared_.size()));
    for (const Shared& shared : shared_) {
      const size_t length = shared.scattered ? 0 : shared.range.length();
      const bool inHead = length == 0 || length < limit;
      const Placement placement = inHead ? Placement::inHead : Placement::onChannel;
      out_.number(static_cast<uint64_t>(shared.range.begin));
      out_.number(static_cast<uint64_t>(length));
      out_.number(placement);
      if (length == 0) {
        continue;
      }
      const auto* data = static_cast<const char*>(shared.storage->data()) + shared.range.begin;
      if (placement == Placement::inHead) {
        out_.raw(data, length);
      } else {
        sendOnChannel(shared, data, length);
      }
    }
  }

  void sendOnChannel(const Shared& shared, const char* data, size_t length) {
    at::Tensor owner = shared.any;
    // Memory that came from at::from_blob without a deleter may be gone before the frame is.
    if (shared.storage->data_ptr().get_context() == nullptr) {
      owner = at::empty({static_cast<int64_t>(length)}, at::kByte);
      std::memcpy(owner.mutable_data_ptr(), data, length);
      data = static_cast<const char*>(owner.const_data_ptr());
    }
    frame_.tensors.push_back({data, length});
    kept_->tensors.push_back(std::move(owner));
  }

  OutgoingFrame& frame_;
  ByteWriter out_;
  std::vector<Shared> shared_; // few: a linear search beats a map
  std::shared_ptr<Kept> kept_ = std::make_shared<Kept>();
};

// ---- decoding -----------------------------------------------------------------------------------

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
      owner->get(),
      owner,
      [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); },
      at::kCPU);
  return makeStorage(blob.length, std::move(data));
}

class TableReader {
 public:
  TableReader(ByteReader& in, std::vector<Blob>& blobs) : in_(in), blobs_(blobs) {}

  std::vector<at::Tensor> read() {
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
    std::vector<at::Tensor> tensors;
    tensors.reserve(count);
    for (const Description& description : descriptions) {
      tensors.push_back(build(description));
    }
    return tensors;
  }

 private:
  struct Description {
    Kind kind = Kind::undefined;
    uint8_t flags = 0;
    at::ScalarType dtype{};
    at::Layout layout = at::kStrided;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    uint32_t storage = 0;
    uint64_t offset = 0; // bytes, in the sender's storage
    double scale = 0;
    int64_t zeroPointOrAxis = 0;
    std::vector<Description> components;
  };
  struct Received {
    c10::Storage storage;
    uint64_t begin; // which byte of the sender's storage comes first
  };

  std::vector<int64_t> readNumbers() {
    std::vector<int64_t> numbers(in_.count(sizeof(int64_t)));
    for (int64_t& n : numbers) {
      n = in_.number<int64_t>();
    }
    return numbers;
  }

  Description readDescription() {
    Description d;
    const auto kind = in_.number<uint8_t>();
    if (kind > static_cast<uint8_t>(Kind::quantizedPerChannel)) {
      throw FormatError("a tensor of unknown kind " + std::to_string(kind));
    }
    d.kind = static_cast<Kind>(kind);
    if (d.kind == Kind::undefined) {
      return d;
    }
    d.flags = in_.number<uint8_t>();
    const auto dtype = in_.number<int8_t>();
    if (dtype < 0 || dtype >= static_cast<int8_t>(at::ScalarType::Undefined)) {
      throw FormatError("a tensor of unknown dtype " + std::to_string(dtype));
    }
    d.dtype = static_cast<at::ScalarType>(dtype);
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

  void readKindFields(Description& d) {
    switch (d.kind) {
      case Kind::sparseCoo:
        d.flags |= in_.number<uint8_t>();
        break;
      case Kind::sparseCompressed:
        d.layout = static_cast<at::Layout>(in_.number<int8_t>());
        break;
      case Kind::quantizedPerTensor:
        d.scale = in_.number<double>();
        d.zeroPointOrAxis = in_.number<int64_t>();
        break;
      case Kind::quantizedPerChannel:
        d.zeroPointOrAxis = in_.number<int64_t>();
        break;
      default:
        break;
    }
  }

  void readComponents(Description& d) {
    const size_t count = d.kind == Kind::sparseCompressed ? 3
        : d.kind == Kind::sparseCoo || d.kind == Kind::quantizedPerChannel ? 2
                                                                          : 0;
    for (size_t i = 0; i < count; ++i) {
      d.components.push_back(readDescription());
      if (d.components.back().kind != Kind::strided) {
        throw FormatError("a component that is no strided tensor");
      }
    }
  }

  static void checkShape(const Description& d) {
    const bool negative =
        std::any_of(d.sizes.begin(), d.sizes.end(), [](int64_t n) { return n < 0; }) ||
        std::any_of(d.strides.begin(), d.strides.end(), [](int64_t n) { return n < 0; });
    if (negative || d.sizes.size() != d.strides.size()) {
      throw FormatError("a tensor with an impossible shape");
    }
  }

  void readStorages() {
    const uint32_t count = in_.count(2 * sizeof(uint64_t) + 1);
    size_t nextBlob = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const auto begin = in_.number<uint64_t>();
      const auto length = in_.number<uint64_t>();
      const auto placement = in_.number<Placement>();
      if (placement == Placement::inHead) {
        storages_.push_back({copyOf(in_.raw(length), length), begin});
        continue;
      }
      if (nextBlob == blobs_.size() || blobs_[nextBlob].length != length) {
        throw FormatError("a storage whose bytes did not come");
      }
      storages_.push_back({viewOf(std::move(blobs_[nextBlob++])), begin});
    }
  }

  at::Tensor build(const Description& d) {
    at::Tensor t;
    switch (d.kind) {
      case Kind::undefined:
        return t;
      case Kind::sparseCoo:
        t = at::_sparse_coo_tensor_unsafe(
            build(d.components[0]),
            build(d.components[1]),
            d.sizes,
            at::TensorOptions(d.dtype).layout(at::kSparse),
            (d.flags & kCoalesced) != 0);
        break;
      case Kind::sparseCompressed:
        t = at::_sparse_compressed_tensor_unsafe(
            build(d.components[0]),
            build(d.components[1]),
            build(d.components[2]),
            d.sizes,
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

  at::Tensor buildOnStorage(const Description& d) {
    const auto [storage, elements] = placeInStorage(d);
    at::Tensor t;
    if (d.kind == Kind::strided) {
      t = at::detail::make_tensor<c10::TensorImpl>(
          c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), at::scalarTypeToTypeMeta(d.dtype));
    } else {
      const at::TensorOptions options(d.dtype);
      t = d.kind == Kind::quantizedPerTensor
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

  /// From the first to the last element; SIZE_MAX where it is more than that.
  static uint64_t elementsSpanned(const Description& d) {
    if (std::find(d.sizes.begin(), d.sizes.end(), 0) != d.sizes.end()) {
      return 0;
    }
    unsigned __int128 last = 0; // numbers of a hostile peer must not wrap around
    for (size_t i = 0; i < d.sizes.size() && last < SIZE_MAX; ++i) {
      last += static_cast<unsigned __int128>(d.sizes[i] - 1) * static_cast<uint64_t>(d.strides[i]);
    }
    return last < SIZE_MAX ? static_cast<uint64_t>(last) + 1 : SIZE_MAX;
  }

  /// The storage and the tensor's offset in it, in elements; throws unless the tensor lies within.
  std::pair<c10::Storage, int64_t> placeInStorage(const Description& d) {
    if (d.storage >= storages_.size()) {
      throw FormatError("a tensor whose storage did not come");
    }
    const Received& received = storages_[d.storage];
    const size_t item = c10::elementSize(d.dtype);
    const uint64_t offset = d.offset - received.begin;
    if (d.offset < received.begin || offset % item != 0 ||
        offset > received.storage.nbytes() ||
        elementsSpanned(d) > (received.storage.nbytes() - offset) / item) {
      throw FormatError("a tensor that reaches beyond its storage");
    }
    return {received.storage, static_cast<int64_t>(offset / item)};
  }

  ByteReader& in_;
  std::vector<Blob>& blobs_;
  std::vector<Received> storages_;
};

} // namespace

size_t inlineLimit() {
  static const size_t limit = [] {
    const char* text = std::getenv("TORCHWIRE_INLINE_LIMIT");
    if (text == nullptr) {
      return kDefaultInlineLimit;
    }
    const bool number = *text != '\0' && std::string(text).find_first_not_of("0123456789") == std::string::npos;
    if (!number) {
      log(LogLevel::warning,
          std::string("TORCHWIRE_INLINE_LIMIT is '") + text + "' and ignored: it is a number of bytes");
      return kDefaultInlineLimit;
    }
    return static_cast<size_t>(std::strtoull(text, nullptr, 10));
  }();
  return limit;
}

std::shared_ptr<void> encodeTensors(const std::vector<at::Tensor>& tensors, OutgoingFrame& frame) {
  return TableWriter(frame).write(tensors);
}

std::vector<at::Tensor> decodeTensors(ByteReader& in, std::vector<Blob>& blobs) {
  const at::NoGradGuard noGrad;
  return TableReader(in, blobs).read();
}

} // namespace torchwire
