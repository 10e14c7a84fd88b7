// What a worker is told when it is made.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "autograd/pass/backward_mode.h"
#include "backend/agent/worker_events.h"
#include "backend/base/thread_pool.h"
#include "backend/link/link_interceptor.h"
#include "backend/tensorpipe/tensorpipe_context.h"
#include "cuda/device_record.h"
#include "cuda/streams.h"
#include "cuda/transfer/device_paths.h"

namespace torchwire {

struct AgentOptions {
  size_t numWorkerThreads = 16;
  size_t numSpareThreads = 256; // in the places of those that wait for calls
  float rpcTimeoutSeconds = 60; // 0: none
  std::string bindAddress; // "host" or "host:port"; empty: chosen by chooseAddress()
  std::string advertiseAddress; // empty: the bound address
  std::optional<std::vector<std::string>> transports;
  std::optional<std::vector<std::string>> channels;
  std::vector<std::string>
      secrets; // the group's: the first is used, all are accepted; none: it draws one
  Encryption encryption = Encryption::automatic;
  std::chrono::milliseconds keepAlive{10000}; // 0: none
  std::chrono::milliseconds sessionTimeout{10000}; // see LinkManager::Limits; 0: no sessions
  size_t maxUnacknowledgedBytes = size_t{64} << 20; // to one peer
  size_t receiveCache = size_t{256} << 20; // bytes of what BufferPool keeps
  size_t maxBytesInFlight = size_t{1}
      << 30; // of requests to one peer, see SendWindow; 0: unbounded
  BackwardMode backwardMode = BackwardMode::smart;
  std::vector<std::shared_ptr<LinkInterceptor>> interceptors; // the innermost first
  std::set<cuda::DevicePath> devicePathsLeftOut;
  bool inheritDeadline =
      false; // what functions call for a caller ends when that one's deadline is over
  std::shared_ptr<ThreadPool> storeThread; // see BoundedStore
  bool elastic = false; // whether a static group's workers may be replaced, and others join
  WorkerEvents workerEvents;
  std::chrono::milliseconds slowCallWarning{30000}; // 0: none
  // The stack of a thread, as pthread_self() has it, of Python's frames; empty: it has none. It may take the GIL.
  std::function<std::string(uint64_t thread)> stackOf = [](uint64_t) { return std::string(); };
  // Answers what an observer asks of this worker, on a thread that may block. Throws where it cannot.
  std::function<std::string(const std::string& question)> answer;
  cuda::DeviceRecord devices; // the worker's name is the agent's
  cuda::StreamOrder deviceStreamOrder = cuda::StreamOrder::none;
};

} // namespace torchwire
