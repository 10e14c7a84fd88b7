// Streams of devices around what comes and goes: of CUDA, and of every other accelerator that PyTorch knows, by c10's
// interface for all of them. Without device tensors nothing here does anything.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <vector>

namespace torchwire::cuda {

using Storages = std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>;

/// Those of them that are no CPU, in order, each once.
std::vector<c10::Device> acceleratorsAmong(std::vector<c10::Device> devices);

/// Where the tensors are that are not on the CPU.
std::vector<c10::Device> acceleratorsOf(const std::vector<at::Tensor>& tensors);

/// The storages of the tensors that are not on the CPU: what a future has to know to have those wait for the streams who
/// use its value. Tensors on the CPU need none, and asking one for its storage fails for the layouts that have none.
Storages deviceStorages(const std::vector<at::Tensor>& tensors);

/// The streams that are current on this thread.
std::vector<c10::Stream> currentStreams(const std::vector<c10::Device>& accelerators);

/// While it lives, a stream of its own is current on this thread for each of the devices that is no CPU: so that what
/// messages bring at the same time overlaps.
class OwnStreams {
 public:
  explicit OwnStreams(const std::vector<c10::Device>& devices);

 protected:
  explicit OwnStreams(std::vector<c10::Stream> streams);

  std::vector<c10::Stream> streams_;

 private:
  std::optional<c10::MultiStreamGuard> guard_;
};

/// What requests and devices' default streams have to do with each other.
enum class StreamOrder {
  none, // nothing, as with PyTorch's backend
  /// A request begins behind what the default streams have been given to do, and they go on behind the request. So it sees
  /// what earlier ones have left in a model's weights, say, and the program, which as a rule works on default streams, sees
  /// what requests have left.
  defaultStream,
};

/// The streams on which a request runs.
class RequestStreams : public OwnStreams {
 public:
  RequestStreams(const std::vector<c10::Device>& devices, StreamOrder order);
  /// Those of a request that has been interrupted and goes on, be it on another thread.
  RequestStreams(std::vector<c10::Stream> streams, StreamOrder order);

  /// Before anybody can know that the request has run.
  void end();

 private:
  void begin();

  const StreamOrder order_;
};

/// What their devices' default streams are given from now on waits for what the streams have been given until now.
void putDefaultsBehind(const std::vector<c10::Stream>& streams);

/// Has the tensor's memory live on until what its device's default stream has been given by then is done.
void lendToDefault(const at::Tensor& tensor);

/// Has the tensor's memory live on until what this thread's current stream of its device has been given by then is done.
void keepForCurrentStream(const at::Tensor& tensor);

/// Has what this thread's current stream of the tensor's device is given from now on wait for `filled`, and the tensor's
/// memory live on until what the stream has been given by then is done.
void useOnCurrentStream(const at::Tensor& tensor, const c10::Event& filled);

/// Has work on `node`'s stream wait for what fills the tensors on this thread's current streams. Unset: the node's work
/// goes to streams that nobody knows yet, so that the host waits.
void handOver(const std::vector<at::Tensor>& tensors, std::optional<c10::Stream> node);

} // namespace torchwire::cuda
