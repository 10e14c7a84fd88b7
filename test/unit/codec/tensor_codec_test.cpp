// Tensors through a tensor table and back.

#include "backend/codec/tensor_codec.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/quantize_per_channel.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>

#include "backend/wire/inline_limit.h"
#include "test/unit/codec/sample_tensors.h"
#include "test/unit/support/seeds.h"

using namespace torchwire;

namespace {

void checkReturns(const at::Tensor& sent) {
  CHECK(difference(sent, throughFrame(sent)) == "");
}

at::Tensor numbers(int64_t count) {
  return at::arange(count, at::kFloat);
}

OutgoingFrame encoded(const std::vector<at::Tensor>& tensors) {
  OutgoingFrame frame;
  frame.owner = encodeTensors(tensors, frame);
  return frame;
}

bool shareStorage(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

} // namespace

TEST_CASE("no tensors are an empty table", "[tensor_codec]") {
  CHECK(encoded({}).head.size() == sizeof(uint32_t));
  CHECK(throughFrame(std::vector<at::Tensor>{}).empty());
}

TEST_CASE("an undefined tensor stays undefined, at its place", "[tensor_codec]") {
  const std::vector<at::Tensor> received = throughFrame({at::Tensor(), numbers(3), at::Tensor()});
  REQUIRE(received.size() == 3);
  CHECK_FALSE(received[0].defined());
  CHECK(difference(numbers(3), received[1]) == "");
  CHECK_FALSE(received[2].defined());
}

TEST_CASE("a tensor of each dtype returns as it was", "[tensor_codec]") {
  std::mt19937 random(1);
  CHECK(plainDtypes().size() >= 40); // 45 without the quantized ones, in torch 2.11
  for (const at::ScalarType dtype : plainDtypes()) {
    CAPTURE(c10::toString(dtype));
    checkReturns(randomBytes(dtype, 7, random));
    checkReturns(randomBytes(dtype, 24, random).as_strided({2, 3}, {1, 4}, 5));
  }
}

TEST_CASE("a view returns with its shape and its strides", "[tensor_codec]") {
  const at::Tensor t = numbers(24).reshape({2, 3, 4});
  checkReturns(t[1]);
  checkReturns(t.slice(2, 1, 4, 2));
  checkReturns(t.transpose(0, 2));
  checkReturns(t.permute({1, 2, 0}).slice(0, 1, 3));
  checkReturns(t.select(0, 0).unsqueeze(0).expand({5, 3, 4}));
  checkReturns(t.as_strided({3, 3}, {1, 1}, 4)); // its elements overlap
  checkReturns(t[1][2][3]);
}

TEST_CASE("a tensor of no dimensions or no elements returns", "[tensor_codec]") {
  checkReturns(at::empty({0}, at::kDouble));
  checkReturns(at::empty({2, 0, 3}, at::kLong));
  checkReturns(numbers(1).reshape({}));
  checkReturns(numbers(8).slice(0, 8, 8));
  checkReturns(numbers(8).reshape({2, 4}).slice(1, 3, 3));
}

TEST_CASE("conjugate and negative bits are kept, not carried out", "[tensor_codec]") {
  std::mt19937 random(1);
  for (const at::ScalarType dtype : {at::kComplexHalf, at::kComplexFloat, at::kComplexDouble}) {
    const at::Tensor t = randomBytes(dtype, 6, random);
    CHECK(throughFrame(at::_conj(t)).is_conj());
    checkReturns(at::_conj(t));
    checkReturns(at::_neg_view(t));
    checkReturns(at::_neg_view(at::_conj(t)).slice(0, 2, 5));
  }
  CHECK(throughFrame(at::_neg_view(numbers(4))).is_neg());
  checkReturns(at::_neg_view(numbers(4)));
}

TEST_CASE("requires_grad is kept, history is not", "[tensor_codec]") {
  const at::Tensor leaf = numbers(4).set_requires_grad(true);
  const at::Tensor received = throughFrame(leaf);
  CHECK(received.requires_grad());
  CHECK(received.is_leaf());
  CHECK_FALSE(throughFrame(numbers(4)).requires_grad());

  const at::Tensor result = leaf.mul(2);
  REQUIRE_FALSE(result.is_leaf());
  CHECK(throughFrame(result).requires_grad());
  CHECK(throughFrame(result).is_leaf());
}

TEST_CASE("sparse tensors return in their layout", "[tensor_codec]") {
  const at::Tensor dense = mostlyZeros({4, 6});
  for (const bool requiresGrad : {false, true}) {
    const auto check = [&](const at::Tensor& t) {
      checkReturns(t.detach().set_requires_grad(requiresGrad));
    };
    check(dense.to_sparse(at::kSparse));
    check(dense.to_sparse(at::kSparseCsr));
    check(dense.to_sparse(at::kSparseCsc));
    check(dense.to_sparse(at::kSparseBsr, {{2, 3}}));
    check(dense.to_sparse(at::kSparseBsc, {{2, 3}}));
    check(mostlyZeros({4, 6, 2}).to_sparse(2)); // hybrid: dense within
    check(mostlyZeros({2, 4, 6}).to_sparse(at::kSparseCsr)); // a batch
    check(at::sparse_coo_tensor({3, 0}, at::kFloat));
  }
}

TEST_CASE("a sparse tensor is coalesced after as it was before", "[tensor_codec]") {
  const at::Tensor indices = at::arange(4, at::kLong).reshape({2, 2}).fmod(2);
  const at::Tensor t = at::sparse_coo_tensor(indices, numbers(2), {2, 2});
  REQUIRE_FALSE(t.is_coalesced());
  CHECK_FALSE(throughFrame(t).is_coalesced());
  CHECK(throughFrame(t.coalesce()).is_coalesced());
}

TEST_CASE("quantized tensors return with their quantizer", "[tensor_codec]") {
  const at::Tensor t = numbers(12).reshape({3, 4});
  for (const at::ScalarType dtype : {at::kQInt8, at::kQUInt8, at::kQInt32}) {
    checkReturns(at::quantize_per_tensor(t, 0.5, 3, dtype));
    checkReturns(at::quantize_per_tensor(t, 0.5, 3, dtype).t());
    checkReturns(
        at::quantize_per_channel(
            t, at::arange(1, 5, at::kDouble), at::arange(4, at::kLong), 1, dtype));
  }
}

TEST_CASE("tensors that share a storage share it on the other side", "[tensor_codec]") {
  const at::Tensor base = numbers(100);
  const std::vector<at::Tensor> sent = {base.slice(0, 10, 60), base.slice(0, 50, 90), numbers(5)};
  const std::vector<at::Tensor> received = throughFrame(sent);
  for (size_t i = 0; i < sent.size(); ++i) {
    CHECK(difference(sent[i], received[i]) == "");
  }
  CHECK(shareStorage(received[0], received[1]));
  CHECK_FALSE(shareStorage(received[0], received[2]));
  received[0][45].fill_(-1); // number 55 of the base
  CHECK(received[1][5].item<float>() == -1);
}

TEST_CASE("tensors of different dtypes share a storage on the other side", "[tensor_codec]") {
  const at::Tensor bytes = at::arange(32, at::kByte);
  const std::vector<at::Tensor> sent = {
      bytes.slice(0, 3, 9), bytes.view(at::kDouble).slice(0, 1, 3), bytes.view(at::kShort)[9]};
  const std::vector<at::Tensor> received = throughFrame(sent);
  for (size_t i = 0; i < sent.size(); ++i) {
    CHECK(difference(sent[i], received[i]) == "");
    CHECK(shareStorage(received[0], received[i]));
  }
}

TEST_CASE("only what is viewed of a storage is sent", "[tensor_codec]") {
  const at::Tensor base = numbers(1000000);
  CHECK(encoded({base.slice(0, 500000, 500010)}).bytes() < 200);
  checkReturns(base.slice(0, 500000, 500010));
}

TEST_CASE("views far apart in a storage are sent as copies", "[tensor_codec]") {
  const at::Tensor base = numbers(1000000);
  const at::Tensor column = base.reshape({1000, 1000}).select(1, 7);
  CHECK(encoded({column}).bytes() < 5000);
  CHECK(differenceButStrides(column, throughFrame(column)) == "");

  const std::vector<at::Tensor> sent = {base.slice(0, 0, 10), base.slice(0, 999990, 1000000)};
  CHECK(encoded(sent).bytes() < 500);
  const std::vector<at::Tensor> received = throughFrame(sent);
  CHECK(difference(sent[0], received[0]) == "");
  CHECK(difference(sent[1], received[1]) == "");
}

TEST_CASE("views far apart are sent as copies whatever their dtype", "[tensor_codec]") {
  std::mt19937 random(1);
  for (const at::ScalarType dtype : plainDtypes()) {
    CAPTURE(c10::toString(dtype));
    const at::Tensor apart = randomBytes(dtype, 20001, random).as_strided({3}, {10000}, 0);
    CHECK(differenceButStrides(apart, throughFrame(apart)) == "");
  }
}

TEST_CASE("an empty view beyond its storage makes nothing beyond it travel", "[tensor_codec]") {
  const at::Tensor base = numbers(10);
  const at::Tensor beyond = base.as_strided({0}, {1}, 500);
  for (const std::vector<at::Tensor>& sent :
       {std::vector<at::Tensor>{beyond}, std::vector<at::Tensor>{base, beyond},
        std::vector<at::Tensor>{beyond, base.slice(0, 2, 4)},
        std::vector<at::Tensor>{base, base.view(at::kByte).as_strided({0}, {1}, 39)}}) {
    CHECK(encoded(sent).bytes() < 200);
    const std::vector<at::Tensor> received = throughFrame(sent);
    for (size_t i = 0; i < sent.size(); ++i) {
      CHECK(difference(sent[i], received[i]) == "");
    }
  }
}

TEST_CASE("storages from the inline limit on travel outside the head", "[tensor_codec]") {
  const auto limit = static_cast<int64_t>(inlineLimit());
  for (const int64_t length : {limit - 1, limit, limit + 1}) {
    const at::Tensor t = at::arange(length, at::kByte);
    const OutgoingFrame frame = encoded({t});
    CHECK(frame.payloads.empty());
    if (length < limit) {
      CHECK(frame.tensors.empty());
      CHECK(frame.head.size() > static_cast<size_t>(length));
    } else {
      REQUIRE(frame.tensors.size() == 1);
      CHECK(frame.tensors[0].length == static_cast<size_t>(length));
      CHECK(frame.tensors[0].data == t.const_data_ptr());
      CHECK(frame.head.size() < 100);
    }
    checkReturns(t);
  }
}

TEST_CASE("storages in the head and outside it find their tensors again", "[tensor_codec]") {
  const auto large = static_cast<int64_t>(inlineLimit());
  const at::Tensor a = numbers(large);
  const at::Tensor b = at::arange(large, at::kDouble);
  const std::vector<at::Tensor> sent = {b.slice(0, 1, large), numbers(3), a, a.slice(0, 5, 9), b};
  CHECK(encoded(sent).tensors.size() == 2);
  const std::vector<at::Tensor> received = throughFrame(sent);
  for (size_t i = 0; i < sent.size(); ++i) {
    CHECK(difference(sent[i], received[i]) == "");
  }
  CHECK(shareStorage(received[0], received[4]));
  CHECK(shareStorage(received[2], received[3]));
}

TEST_CASE("a large sparse tensor travels outside the head", "[tensor_codec]") {
  const auto count = static_cast<int64_t>(inlineLimit());
  const at::Tensor indices = at::arange(count, at::kLong).unsqueeze(0);
  const at::Tensor t = at::sparse_coo_tensor(indices, numbers(count), {count});
  CHECK(encoded({t}).tensors.size() == 2);
  checkReturns(t);
}

TEST_CASE("what is to be sent stays alive with the frame", "[tensor_codec]") {
  const auto length = static_cast<int64_t>(inlineLimit());
  OutgoingFrame frame;
  SECTION("of a tensor that PyTorch owns") {
    frame = encoded({at::arange(length, at::kByte)});
  }
  SECTION("of memory that someone else owns") {
    std::vector<unsigned char> memory(static_cast<size_t>(length));
    for (size_t i = 0; i < memory.size(); ++i) {
      memory[i] = static_cast<unsigned char>(i);
    }
    frame = encoded({at::from_blob(memory.data(), {length}, at::kByte)});
    memory.assign(memory.size(), 0);
  }
  IncomingFrame arrived = loopBack(std::move(frame));
  ByteReader in(arrived.head);
  const at::Tensor received = decodeTensors(in, arrived.tensors).tensors.at(0);
  CHECK(difference(at::arange(length, at::kByte), received) == "");
}

TEST_CASE("what cannot be sent is refused with its reason", "[tensor_codec]") {
  const at::Tensor t = numbers(12).reshape({3, 4});
  CHECK_THROWS_WITH(
      throughFrame(at::empty({2}, at::TensorOptions(at::kMeta))),
      Catch::Contains("cannot send a tensor of shape [2]") &&
          Catch::Contains("it is not on the CPU"));
  CHECK_THROWS_WITH(
      throughFrame(
          at::quantize_per_channel(
              t, at::arange(1, 4, at::kFloat), at::arange(3, at::kFloat), 0, at::kQUInt4x2)),
      Catch::Contains("cannot send a tensor of shape [3, 4]"));
}

TEST_CASE("a tensor whose elements are not all in its storage is refused", "[tensor_codec]") {
  at::Tensor t = numbers(10);
  SECTION("its storage was made smaller") {
    t.storage().unsafeGetStorageImpl()->set_nbytes(36);
  }
  SECTION("its storage was freed") {
    t.storage().unsafeGetStorageImpl()->set_nbytes(0);
  }
  SECTION("several elements are in a byte") {
    t = at::quantize_per_tensor(t, 1.0, 0, at::kQUInt4x2);
  }
  CHECK_THROWS_WITH(throughFrame(t), Catch::Contains("its elements reach beyond its storage"));
}

TEST_CASE("generated tensors return as they were", "[tensor_codec_random]") {
  for (const unsigned seed : seeds(300)) {
    INFO("TORCHWIRE_TEST_SEED=" << seed);
    std::mt19937 random(seed);
    std::vector<at::Tensor> sent;
    for (unsigned n = random() % 6; n > 0; --n) {
      sent.push_back(randomTensor(random));
    }
    const std::vector<at::Tensor> received = throughFrame(sent);
    REQUIRE(received.size() == sent.size());
    for (size_t i = 0; i < sent.size(); ++i) {
      INFO("tensor " << i << " of " << sent.size());
      CHECK(difference(sent[i], received[i]) == "");
    }
  }
}

TEST_CASE("generated tensors share what they shared", "[tensor_codec_random]") {
  for (const unsigned seed : seeds(300)) {
    INFO("TORCHWIRE_TEST_SEED=" << seed);
    std::mt19937 random(seed);
    const std::vector<at::Tensor> sent = randomRelatives(random);
    const std::vector<at::Tensor> received = throughFrame(sent);
    REQUIRE(received.size() == sent.size());
    for (size_t i = 0; i < sent.size(); ++i) {
      CHECK(difference(sent[i], received[i]) == "");
      CHECK(shareStorage(received[0], received[i]));
    }
  }
}

TEST_CASE("The receiver's device of each tensor travels along", "[tensor_codec]") {
  const std::vector<at::Tensor> tensors{
      at::zeros({3}), at::Tensor(), at::zeros({2, 2}).to_sparse(), at::zeros({4})};
  const std::vector<c10::Device> devices{{at::kCUDA, 1}, at::kCPU, {at::kPrivateUse1, 0}, at::kCPU};
  OutgoingFrame frame;
  frame.owner = encodeTensors(tensors, frame, {devices, {}});
  ByteReader in(frame.head.data(), frame.head.size());
  std::vector<Blob> blobs;
  const DecodedTensors decoded = decodeTensors(in, blobs);
  CHECK(decoded.targets.devices == devices);
  CHECK(decoded.tensors.at(2).is_sparse());
  CHECK(decoded.tensors.at(3).equal(tensors[3]));
}

TEST_CASE("A table that names no device says so by naming none", "[tensor_codec]") {
  OutgoingFrame frame;
  frame.owner = encodeTensors({at::zeros({3})}, frame);
  ByteReader in(frame.head.data(), frame.head.size());
  std::vector<Blob> blobs;
  CHECK(decodeTensors(in, blobs).targets.devices.empty());
}

TEST_CASE("A tensor for a device that cannot be is refused", "[tensor_codec]") {
  OutgoingFrame frame;
  frame.owner = encodeTensors({at::zeros({3})}, frame, {{{at::kCUDA, 1}}, {}});
  constexpr size_t kDevice = sizeof(uint32_t) + 3; // behind the count, kind, flags and dtype
  for (const auto& [type, index] : {std::pair(0, 0), {-1, 0}, {100, 0}, {1, -1}}) {
    frame.head[kDevice] = static_cast<char>(type);
    frame.head[kDevice + 1] = static_cast<char>(index);
    ByteReader in(frame.head.data(), frame.head.size());
    std::vector<Blob> blobs;
    CHECK_THROWS_AS(decodeTensors(in, blobs), FormatError);
  }
}
