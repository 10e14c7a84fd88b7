// NCCL without devices: communicators that are made, and do nothing.
#pragma once

#include <memory>
#include <string>

#include "cuda/transfer/communicator.h"

namespace torchwire::cuda {

class FakeCommunicator final : public Communicator {
 public:
  bool isReady() override {
    return true;
  }
  void send(const void*, size_t) override {}
  void receive(void*, size_t) override {}
  c10::Stream stream() const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::kCPU);
  }
  void abort() noexcept override {}
};

class FakeNccl final : public Nccl {
 public:
  std::string newId() override {
    return "an id";
  }
  std::string gpuId(c10::DeviceIndex device) override {
    return std::to_string(device);
  }
  std::unique_ptr<Communicator> begin(
      c10::DeviceIndex, Communicator::Rank, const std::string&) override {
    return std::make_unique<FakeCommunicator>();
  }
};

} // namespace torchwire::cuda
