#include "cuda/transfer/tensor_ticket.h"

#include <ATen/ATen.h>
#include <catch2/catch.hpp>

#include <string>

#include "backend/base/bytes.h"
#include "backend/codec/tensor_codec.h"

using namespace torchwire;
using namespace torchwire::cuda;

namespace {

TensorTicket sample() {
  TensorTicket ticket;
  ticket.path = DevicePath::ipc;
  ticket.dtype = at::kHalf;
  ticket.requiresGrad = true;
  ticket.sizes = {3, 0, 5};
  ticket.order = {2, 0, 1};
  ticket.from = c10::Device(c10::DeviceType::CUDA, 3);
  ticket.block = {77, true, std::string(64, 'm'), std::string(64, '\0')};
  return ticket;
}

std::string refusal(const at::Tensor& bytes) {
  try {
    TensorTicket::decode(bytes);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

std::string refusalOf(const TensorTicket& ticket) {
  return refusal(ticket.encode());
}

} // namespace

TEST_CASE("a ticket survives its encoding", "[tensor_ticket]") {
  const TensorTicket sent = sample();
  const TensorTicket ticket = TensorTicket::decode(sent.encode());
  CHECK(ticket.path == DevicePath::ipc);
  CHECK(ticket.dtype == at::kHalf);
  CHECK(ticket.requiresGrad);
  CHECK(ticket.sizes == sent.sizes);
  CHECK(ticket.order == sent.order);
  CHECK((ticket.from == sent.from));
  CHECK(ticket.block.id == 77);
  CHECK(ticket.block.kept);
  CHECK(ticket.block.memoryHandle == sent.block.memoryHandle);
  CHECK(ticket.block.eventHandle == sent.block.eventHandle);
  CHECK(ticket.bytes() == 0);

  TensorTicket byNccl = sample();
  byNccl.path = DevicePath::nccl;
  byNccl.number = 5;
  byNccl.lane = 6;
  const TensorTicket read = TensorTicket::decode(byNccl.encode());
  CHECK(read.path == DevicePath::nccl);
  CHECK(read.dtype == at::kHalf);
  CHECK(read.requiresGrad);
  CHECK(read.sizes == sent.sizes);
  CHECK(read.order == sent.order);
  CHECK((read.from == sent.from));
  CHECK(read.number == 5);
  CHECK(read.lane == 6);

  TensorTicket own;
  own.number = 12;
  CHECK(TensorTicket::decode(own.encode()).path == DevicePath::process);
  CHECK(TensorTicket::decode(own.encode()).number == 12);
}

TEST_CASE("a tensor comes back with the order of its dimensions in memory", "[tensor_ticket]") {
  const at::Tensor dense = at::arange(24).reshape({2, 3, 4});
  const at::Tensor nested = at::arange(48).reshape({2, 3, 8}).slice(2, 0, 4);
  for (const at::Tensor& tensor :
       {dense, dense.permute({2, 0, 1}), dense.transpose(0, 1), at::ones({}), nested,
        at::ones({3, 1}).expand({3, 2})}) {
    TensorTicket ticket;
    const at::Tensor elements = ticket.describe(tensor).contiguous();
    CHECK(elements.sizes().vec() == ticket.sizes);
    const at::Tensor restored = ticket.restore(elements);
    CHECK(restored.equal(tensor));
    if (tensor.is_non_overlapping_and_dense()) {
      CHECK(restored.strides() == tensor.strides());
    }
  }
}

TEST_CASE("a ticket that is cut, or too long, is refused", "[tensor_ticket]") {
  const at::Tensor bytes = sample().encode();
  for (int64_t length = 0; length < bytes.numel(); ++length) {
    CHECK_FALSE(refusal(bytes.slice(0, 0, length)).empty());
  }
  CHECK_FALSE(refusal(at::cat({bytes, at::zeros({1}, at::kByte)})).empty());
}

TEST_CASE("a ticket for what cannot be is refused", "[tensor_ticket]") {
  TensorTicket ticket = sample();
  SECTION("a path") {
    at::Tensor bytes = ticket.encode();
    for (const int path : {0, 4, 255}) {
      bytes[0] = path;
      CHECK(refusal(bytes) == "a ticket for a tensor by an unknown path");
    }
  }
  SECTION("a size") {
    ticket.sizes = {2, -1};
    ticket.order = {};
    CHECK(refusalOf(ticket) == "a ticket for a tensor of impossible size");
    ticket.sizes = {INT64_MAX, INT64_MAX};
    CHECK(refusalOf(ticket) == "a ticket for a tensor of impossible size");
    ticket.sizes = {INT64_MAX};
    CHECK(refusalOf(ticket) == "a ticket for a tensor of impossible size");
  }
  SECTION("an order") {
    ticket.order = {0, 1};
    CHECK(refusalOf(ticket) == "a ticket for a tensor with the order of other dimensions");
    for (const int64_t other : {0, 3}) {
      ticket.order = {0, 1, other};
      CHECK(refusalOf(ticket) == "a ticket for a tensor with dimensions in no order");
    }
  }
  SECTION("a dtype") {
    ticket.dtype = at::kQInt8;
    CHECK_FALSE(refusalOf(ticket).empty());
    ticket.dtype = static_cast<at::ScalarType>(-3);
    CHECK_FALSE(refusalOf(ticket).empty());
  }
  SECTION("a device") {
    ticket.from = c10::Device(c10::kCPU);
    CHECK(refusalOf(ticket) == "a ticket for a tensor from an unknown device");
  }
}

TEST_CASE("a table says which of its tensors are tickets", "[tensor_ticket]") {
  const std::vector<at::Tensor> tensors{
      at::ones({3}), sample().encode(), at::zeros({2}, at::kByte)};
  const c10::Device device(c10::DeviceType::CUDA, 1);
  TensorTargets targets{{c10::Device(c10::kCPU), device, device}, {false, true, false}};
  OutgoingFrame frame;
  encodeTensors(tensors, frame, targets);
  std::vector<Blob> blobs;
  SECTION("and where they go") {
    ByteReader in(frame.head);
    const auto decoded = decodeTensors(in, blobs);
    CHECK(decoded.targets.devices == targets.devices);
    CHECK(decoded.targets.tickets == targets.tickets);
    CHECK(TensorTicket::decode(decoded.tensors[1]).block.id == 77);
  }
  SECTION("but not of those for the CPU, or that have other elements than bytes") {
    targets.devices[1] = c10::kCPU;
    OutgoingFrame forTheCpu;
    encodeTensors(tensors, forTheCpu, targets);
    ByteReader in(forTheCpu.head);
    CHECK_THROWS_AS(decodeTensors(in, blobs), FormatError);

    OutgoingFrame ofFloats;
    encodeTensors({at::ones({3})}, ofFloats, {{device}, {true}});
    ByteReader floats(ofFloats.head);
    CHECK_THROWS_AS(decodeTensors(floats, blobs), FormatError);
  }
}
