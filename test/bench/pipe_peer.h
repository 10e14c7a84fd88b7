// Who talks over a pipe: the caller sends and measures, the callee answers.
#pragma once

#include <tensorpipe/tensorpipe.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <vector>

namespace torchwire::bench {

struct PeerOptions {
  bool asTensors = false; // over a channel
  bool freshBuffers = false; // memory is allocated for each message that comes, not reused
  bool userThread = false; // the caller sends on a thread of its own, not in TensorPipe's callback
};

/// A batch of samples. A sample is an echo, or a stream of messages up to the answer to its last one.
struct Workload {
  std::string kind; // "echo" or "stream"
  size_t size = 0; // of one message, in bytes
  size_t warmUps = 0; // samples before the others, which are not measured
  size_t samples = 0;
  size_t messages = 0; // per sample
};

struct Packet {
  std::string tag;
  std::shared_ptr<char[]> data;
  size_t size = 0;
};

/// Sends and receives packets on a pipe. One receive at a time; callbacks come on TensorPipe's threads, and
/// must have ended (Endpoint::join()) before this is destroyed.
class Peer {
 public:
  Peer(std::shared_ptr<tensorpipe::Pipe> pipe, PeerOptions options);
  virtual ~Peer() = default;
  /// What is still under way fails from now on, which is no reason to call onEnd().
  void close();

 protected:
  virtual void onPacket(Packet packet) = 0;
  /// The pipe is broken, or the other side closed it.
  virtual void onEnd(const tensorpipe::Error& error) = 0;

  void send(Packet packet);
  void receive();

  const PeerOptions options_;

 private:
  void fail(const tensorpipe::Error& error);
  std::shared_ptr<char[]> bufferOf(size_t size);
  tensorpipe::Allocation allocate(const tensorpipe::Descriptor& descriptor, Packet& packet);

  const std::shared_ptr<tensorpipe::Pipe> pipe_;
  std::shared_ptr<char[]> buffer_;
  size_t bufferSize_ = 0;
  std::atomic<bool> closing_{false};
};

class Callee final : public Peer {
 public:
  using Peer::Peer;
  /// Answers until the caller closes the pipe.
  void serve();

 private:
  void onPacket(Packet packet) override;
  void onEnd(const tensorpipe::Error& error) override;

  std::counting_semaphore<> ended_{0}; // a read and a write may both fail
};

class Caller final : public Peer {
 public:
  using Peer::Peer;
  /// The nanoseconds that each sample took. Ends the process when the pipe breaks.
  std::vector<uint64_t> run(const Workload& workload);

 private:
  void startSample();
  void onPacket(Packet packet) override;
  void onEnd(const tensorpipe::Error& error) override;
  void finishSample(const Packet& answer);

  Workload workload_;
  std::shared_ptr<char[]> data_;
  size_t warmUpsLeft_ = 0;
  std::vector<uint64_t> samples_;
  std::chrono::steady_clock::time_point start_;
  std::counting_semaphore<> userTurn_{0};
};

} // namespace torchwire::bench
