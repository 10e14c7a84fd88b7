#include "test/bench/pipe_peer.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace torchwire::bench {
namespace {

namespace tp = tensorpipe;

using Clock = std::chrono::steady_clock;

// What the callee shall do with a packet.
constexpr const char* kEcho = "echo";
constexpr const char* kSwallow = "swallow";
constexpr const char* kConfirm = "confirm";

tp::Message toMessage(const Packet& packet, bool asTensor) {
  tp::Message message;
  message.metadata = packet.tag;
  if (packet.size == 0) {
    return message;
  }
  if (asTensor) {
    tp::Message::Tensor tensor;
    tensor.buffer = tp::CpuBuffer{.ptr = packet.data.get()};
    tensor.length = packet.size;
    tensor.targetDevice = tp::Device(tp::kCpuDeviceType, 0);
    message.tensors.push_back(std::move(tensor));
  } else {
    message.payloads.push_back({packet.data.get(), packet.size, std::string()});
  }
  return message;
}

[[noreturn]] void die(const std::string& reason) {
  std::fprintf(stderr, "pipe_bench: %s\n", reason.c_str());
  std::_Exit(EXIT_FAILURE);
}

} // namespace

Peer::Peer(std::shared_ptr<tp::Pipe> pipe, PeerOptions options)
    : options_(options), pipe_(std::move(pipe)) {}

void Peer::close() {
  closing_ = true;
  pipe_->close();
}

void Peer::fail(const tp::Error& error) {
  if (!closing_) {
    onEnd(error);
  }
}

void Peer::send(Packet packet) {
  tp::Message message = toMessage(packet, options_.asTensors);
  pipe_->write(std::move(message), [this, kept = std::move(packet.data)](const tp::Error& error) {
    if (error) {
      fail(error);
    }
  });
}

void Peer::receive() {
  pipe_->readDescriptor([this](const tp::Error& error, tp::Descriptor descriptor) {
    if (error) {
      fail(error);
      return;
    }
    Packet packet;
    tp::Allocation allocation = allocate(descriptor, packet);
    pipe_->read(
        std::move(allocation), [this, packet = std::move(packet)](const tp::Error& readError) {
          if (readError) {
            fail(readError);
          } else {
            onPacket(packet);
          }
        });
  });
}

std::shared_ptr<char[]> Peer::bufferOf(size_t size) {
  if (options_.freshBuffers) {
    return std::make_shared_for_overwrite<char[]>(size);
  }
  if (size > bufferSize_) {
    buffer_ = std::make_shared_for_overwrite<char[]>(size);
    bufferSize_ = size;
  }
  return buffer_;
}

tp::Allocation Peer::allocate(const tp::Descriptor& descriptor, Packet& packet) {
  tp::Allocation allocation;
  packet.tag = descriptor.metadata;
  for (const auto& payload : descriptor.payloads) {
    packet.size = payload.length;
    packet.data = bufferOf(packet.size);
    allocation.payloads.push_back({packet.data.get()});
  }
  for (const auto& tensor : descriptor.tensors) {
    packet.size = tensor.length;
    packet.data = bufferOf(packet.size);
    tp::Allocation::Tensor into;
    into.buffer = tp::CpuBuffer{.ptr = packet.data.get()};
    allocation.tensors.push_back(std::move(into));
  }
  return allocation;
}

void Callee::serve() {
  receive();
  ended_.acquire();
}

void Callee::onPacket(Packet packet) {
  if (packet.tag == kEcho) {
    send(std::move(packet));
  } else if (packet.tag == kConfirm) {
    send({kConfirm, nullptr, 0});
  }
  receive();
}

void Callee::onEnd(const tp::Error&) {
  ended_.release();
}

std::vector<uint64_t> Caller::run(const Workload& workload) {
  workload_ = workload;
  data_ = std::make_shared<char[]>(workload.size);
  warmUpsLeft_ = workload.warmUps;
  samples_.clear();
  samples_.reserve(workload.samples);
  receive();
  startSample();
  // A turn that comes before the last sample is this thread's to start the next.
  for (userTurn_.acquire(); samples_.size() < workload.samples; userTurn_.acquire()) {
    startSample();
  }
  return samples_;
}

void Caller::startSample() {
  if (warmUpsLeft_ > 0) { // other content each time, which finishSample() compares
    std::memset(data_.get(), static_cast<int>(warmUpsLeft_), workload_.size);
  }
  start_ = Clock::now();
  const char* last = workload_.kind == "echo" ? kEcho : kConfirm;
  for (size_t left = workload_.messages; left > 0; --left) {
    send({left == 1 ? last : kSwallow, data_, workload_.size});
  }
}

void Caller::onPacket(Packet packet) {
  finishSample(packet);
  const bool more = samples_.size() < workload_.samples;
  if (more) {
    receive();
  }
  if (more && !options_.userThread) {
    startSample();
  } else {
    userTurn_.release();
  }
}

void Caller::finishSample(const Packet& answer) {
  const auto taken = Clock::now() - start_;
  if (warmUpsLeft_ == 0) {
    samples_.push_back(std::chrono::nanoseconds(taken).count());
    return;
  }
  --warmUpsLeft_;
  if (workload_.kind == "echo" &&
      (answer.size != workload_.size ||
       std::memcmp(answer.data.get(), data_.get(), answer.size) != 0)) {
    die("an echo differs from what was sent");
  }
}

void Caller::onEnd(const tp::Error& error) {
  die("the pipe broke: " + error.what());
}

} // namespace torchwire::bench
