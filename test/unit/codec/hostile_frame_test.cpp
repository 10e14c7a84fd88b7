// Frames as no worker writes them: they are decoded or refused, at no great cost.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/quantize_per_channel.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <fstream>
#include <functional>
#include <new>
#include <set>
#include <string>

#include "backend/base/thread_pool.h"
#include "backend/codec/codec.h"
#include "backend/wire/inline_limit.h"
#include "backend/wire/tensor_table.h"
#include "test/unit/codec/sample_tensors.h"

namespace rpc = torch::distributed::rpc;
using namespace torchwire;

namespace {

/// As long as it lives, the process gets no more than so much memory on top.
class MemoryLimit {
 public:
  explicit MemoryLimit(size_t bytes) {
    ::getrlimit(RLIMIT_AS, &before_);
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + bytes;
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimit() {
    ::setrlimit(RLIMIT_AS, &before_);
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};
constexpr size_t kAbsurd = 256 << 20;

/// As it would arrive; storages outside the head, too.
IncomingFrame sampleFrame(std::vector<at::Tensor> tensors) {
  const Disposer disposer(std::make_shared<ThreadPool>(1, "hostile_frame"));
  OutgoingFrame frame = encodeMessage(
      FrameKind::request,
      c10::make_intrusive<rpc::Message>(
          std::vector<char>{'b', 'o', 'd', 'y'}, std::move(tensors), rpc::MessageType::PYTHON_CALL),
      disposer);
  return loopBack(std::move(frame));
}

/// One of each form that a table knows.
std::vector<IncomingFrame> sampleFrames() {
  const at::NoGradGuard noGrad;
  const at::Tensor base = at::arange(6, at::kFloat);
  const at::Tensor dense = mostlyZeros({2, 4});
  const at::Tensor square = base.reshape({2, 3});
  std::vector<IncomingFrame> frames;
  for (const std::vector<at::Tensor>& tensors : std::vector<std::vector<at::Tensor>>{
           {},
           {base.slice(0, 2, 5), at::Tensor(), square.t()},
           {at::_conj(base.to(at::kComplexFloat)), base.clone().set_requires_grad(true)},
           {dense.to_sparse(at::kSparse)},
           {dense.to_sparse(at::kSparseCsr), dense.to_sparse(at::kSparseBsc, {{2, 2}})},
           {at::quantize_per_tensor(square, 0.5, 1, at::kQUInt8)},
           {at::quantize_per_channel(
               square, at::arange(1, 4, at::kDouble), at::arange(3, at::kLong), 1, at::kQInt8)},
           {at::arange(static_cast<int64_t>(inlineLimit()), at::kByte), base},
       }) {
    frames.push_back(sampleFrame(tensors));
  }
  return frames;
}

/// Whether a tensor's elements, and its components', lie in memory that it has.
bool isWithinStorage(const at::Tensor& t) {
  if (!t.defined()) {
    return true;
  }
  if (t.layout() == at::kSparse) {
    return isWithinStorage(t._indices()) && isWithinStorage(t._values());
  }
  if (t.layout() != at::kStrided) {
    return isWithinStorage(t.values());
  }
  unsigned __int128 last = static_cast<uint64_t>(t.storage_offset());
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) == 0) {
      return true;
    }
    last += static_cast<unsigned __int128>(t.size(d) - 1) * static_cast<uint64_t>(t.stride(d));
  }
  return (last + 1) * t.element_size() <= t.storage().nbytes();
}

/// Decodes the frame or finds it refused. Whatever else happens fails the test.
bool isAccepted(const IncomingFrame& frame) {
  try {
    const auto message = decodeMessage(readHeader(frame)).message;
    for (const at::Tensor& t : message->tensors()) {
      if (!isWithinStorage(t)) {
        FAIL("a tensor reaches beyond its storage");
      }
    }
    return true;
  } catch (const FormatError&) {
    return false;
  } catch (const c10::Error& error) {
    if (std::string(error.what()).find("not enough memory") != std::string::npos) {
      FAIL("it asked for an absurd amount of memory: " << error.what_without_backtrace());
    }
    return false;
  } catch (const std::bad_alloc&) {
    FAIL("it asked for an absurd amount of memory");
  } catch (const std::length_error& error) {
    FAIL("it asked for an absurd amount of memory: " << error.what());
  }
  return false;
}

// ---- tables made by hand -----------------------------------------------------------------------------

IncomingFrame frameWith(const std::function<void(ByteWriter&)>& writeTable) {
  IncomingFrame frame;
  ByteWriter out(frame.head);
  FrameHeader header;
  header.kind = FrameKind::request;
  header.flags = 1; // the body, of no bytes, is in the head
  header.messageType = static_cast<uint32_t>(rpc::MessageType::PYTHON_CALL);
  header.write(out);
  writeTable(out);
  return frame;
}

void writeNumbers(ByteWriter& out, const std::vector<int64_t>& numbers) {
  out.number(static_cast<uint32_t>(numbers.size()));
  for (const int64_t n : numbers) {
    out.number(n);
  }
}

struct TensorOnWire {
  TensorKind kind = TensorKind::strided;
  uint8_t flags = 0;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes = {2};
  std::vector<int64_t> strides = {1};
  uint32_t storage = 0;
  uint64_t offset = 0;
};

/// A frame with this tensor and a storage of eight bytes.
IncomingFrame frameWith(const TensorOnWire& t) {
  return frameWith([&](ByteWriter& out) {
    out.number(uint32_t{1});
    out.number(t.kind);
    out.number(t.flags);
    out.number(t.dtype);
    writeNumbers(out, t.sizes);
    out.number(uint8_t{0});
    writeNumbers(out, t.strides);
    out.number(t.storage);
    out.number(t.offset);
    out.number(uint32_t{1});
    out.number(uint64_t{0});
    out.number(uint64_t{8});
    out.number(StoragePlacement::inHead);
    out.number(uint64_t{0});
  });
}

} // namespace

TEST_CASE("a table made by hand is decoded", "[hostile_frame]") {
  CHECK(isAccepted(frameWith(TensorOnWire{})));
  CHECK(isAccepted(frameWith(TensorOnWire{.sizes = {1}, .strides = {9}, .offset = 4})));
}

TEST_CASE("a frame with any of its bytes changed is decoded or refused", "[hostile_frame]") {
  for (const IncomingFrame& original : sampleFrames()) {
    REQUIRE(isAccepted(original));
    const size_t part = std::min<size_t>(original.head.size(), 2000);
    const MemoryLimit limit(kAbsurd);
    for (size_t at = 0; at < part; ++at) {
      const auto byte = static_cast<unsigned char>(original.head[at]);
      std::set<unsigned> values = {0,    1,    2,         5,         0x7f,
                                   0x80, 0xff, byte + 1U, byte - 1U, byte ^ 0x10U};
      for (unsigned bit = 0; bit < 8; ++bit) {
        values.insert(byte ^ 1U << bit);
      }
      for (const unsigned value : values) {
        IncomingFrame changed = original;
        changed.head[at] = static_cast<char>(value);
        CAPTURE(original.head.size(), at, static_cast<unsigned>(byte), value);
        isAccepted(changed);
      }
    }
  }
}

TEST_CASE("a frame with absurd numbers in it is decoded or refused", "[hostile_frame]") {
  for (const IncomingFrame& original : sampleFrames()) {
    const MemoryLimit limit(kAbsurd);
    for (const size_t width : {size_t{4}, size_t{8}}) {
      for (size_t at = 0; at + width <= original.head.size() && at < 2000; ++at) {
        for (const char* pattern :
             {"\xff\xff\xff\xff\xff\xff\xff\xff", "\x00\x00\x00\x00\x00\x00\x00\x80",
              "\xff\xff\xff\x7f\xff\xff\xff\x7f", "\x00\x00\x00\x40\x01\x00\x00\x00"}) {
          IncomingFrame changed = original;
          std::memcpy(changed.head.data() + at, pattern, width);
          CAPTURE(original.head.size(), at, width);
          isAccepted(changed);
        }
      }
    }
  }
}

TEST_CASE("a frame cut short is refused", "[hostile_frame]") {
  for (const IncomingFrame& original : sampleFrames()) {
    for (size_t length = 0; length < original.head.size(); ++length) {
      IncomingFrame cut = original;
      cut.head.resize(length);
      CAPTURE(original.head.size(), length);
      CHECK_FALSE(isAccepted(cut));
    }
  }
}

TEST_CASE("a frame without its large storages or payload is refused", "[hostile_frame]") {
  const at::Tensor large = at::arange(static_cast<int64_t>(inlineLimit()), at::kByte);
  IncomingFrame frame = sampleFrame({large, large.clone()});
  REQUIRE(frame.tensors.size() == 2);
  SECTION("none came") {
    frame.tensors.clear();
  }
  SECTION("one came") {
    frame.tensors.pop_back();
  }
  SECTION("one is too short") {
    frame.tensors[1].length -= 1;
  }
  SECTION("the payload is said to be outside the head") {
    frame.head[1] = 0;
  }
  CHECK_FALSE(isAccepted(frame));
}

TEST_CASE("a tensor beyond its storage is refused", "[hostile_frame]") {
  constexpr int64_t kHuge = INT64_MAX;
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.sizes = {3}})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.strides = {2}})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.offset = 4})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.offset = UINT64_MAX})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.offset = UINT64_MAX - 3})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.sizes = {1}, .offset = 2})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.sizes = {kHuge}})));
  CHECK_FALSE(
      isAccepted(frameWith(TensorOnWire{.sizes = {kHuge, kHuge}, .strides = {kHuge, kHuge}})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.strides = {kHuge}})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.storage = 1})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.dtype = at::kDouble})));
}

TEST_CASE("a tensor of an impossible shape is refused", "[hostile_frame]") {
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.sizes = {-1}})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.strides = {-1}})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.sizes = {1, 1}})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.strides = {}})));
  // More elements than can be counted, all in the same place.
  CHECK_FALSE(isAccepted(
      frameWith(TensorOnWire{.sizes = {int64_t{1} << 40, int64_t{1} << 40}, .strides = {0, 0}})));
}

TEST_CASE("a tensor of a kind, dtype or flag that does not fit is refused", "[hostile_frame]") {
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.kind = static_cast<TensorKind>(6)})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.dtype = at::ScalarType::Undefined})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.dtype = static_cast<at::ScalarType>(-1)})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.flags = kConjugate})));
  CHECK_FALSE(isAccepted(frameWith(TensorOnWire{.flags = kRequiresGrad, .dtype = at::kInt})));
}

TEST_CASE(
    "counts that nothing follows are refused before anything is allocated", "[hostile_frame]") {
  const MemoryLimit limit(kAbsurd);
  CHECK_FALSE(isAccepted(frameWith([](ByteWriter& out) { out.number(UINT32_MAX); })));
  CHECK_FALSE(isAccepted(frameWith([](ByteWriter& out) { // storages
    out.number(uint32_t{1});
    out.number(TensorKind::undefined);
    out.number(UINT32_MAX);
  })));
  CHECK_FALSE(isAccepted(frameWith([](ByteWriter& out) { // dimensions
    out.number(uint32_t{1});
    out.number(TensorKind::strided);
    out.number(uint8_t{0});
    out.number(at::kFloat);
    out.number(UINT32_MAX);
  })));
}

TEST_CASE("components within components are refused, however deep they go", "[hostile_frame]") {
  for (const int depth : {2, 1000000}) {
    CHECK_FALSE(isAccepted(frameWith([&](ByteWriter& out) {
      out.number(uint32_t{1});
      for (int i = 0; i < depth; ++i) {
        out.number(TensorKind::sparseCoo);
        out.number(uint8_t{0});
        out.number(at::kFloat);
        writeNumbers(out, {});
        out.number(uint8_t{0});
      }
    })));
  }
}
