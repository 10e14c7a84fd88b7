// What workers tell each other about tensors that go past the frames, from device to device.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <functional>
#include <memory>

#include "backend/base/thread_pool.h"
#include "backend/serve/dispatcher.h"
#include "backend/wire/roster.h"
#include "cuda/transfer/transfers.h"

namespace torchwire {

/// Sends a request, with the default time-out. On any thread, under any lock. Throws where the worker is not in the group, or
/// this one shuts down.
using SendRequest = std::function<c10::intrusive_ptr<torch::distributed::rpc::JitFuture>(
    WorkerId to, c10::intrusive_ptr<torch::distributed::rpc::Message> request)>;

/// Has `transfers` send its messages by `send`, and `dispatcher` serve those of others: trials on `copies`, whose threads may
/// wait for devices. Before the first message. All of it outlives the requests.
void connectDeviceMessages(
    cuda::Transfers& transfers, Dispatcher& dispatcher, const std::shared_ptr<ThreadPool>& copies,
    SendRequest send);

} // namespace torchwire
