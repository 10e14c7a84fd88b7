// A call of this worker, as what ends it needs it.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/rpc/message.h>

#include <memory>
#include <optional>

#include "autograd/direct_forward.h"
#include "autograd/torch_engine.h"
#include "backend/base/thread_pool.h"
#include "backend/serve/direct_rref.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Makes the value of a future of a response. Runs where the call ends, on a thread that may block.
using ReadResult = at::IValue (*)(c10::intrusive_ptr<torch::distributed::rpc::Message> response);

/// What is to be known of any call when it is over.
struct CallTarget {
  WorkerId to;
  std::optional<ContextId> context; // an autograd one, that the call is part of
  bool isDirect = false; // and its answer nothing that libtorch could read
};

/// A call that ends with its future.
struct OwnCall : CallTarget {
  bool mayCreate = false; // an RRef
  bool creates = false; // for certain
  std::shared_ptr<Pass> pass; // that has to wait for the answer; null: none
  c10::intrusive_ptr<torch::distributed::rpc::JitFuture> future;
  ThreadPool* pool = nullptr; // where it ends, unless a thread waits for it
  ReadResult read = nullptr; // null: the response itself is the future's value
  std::shared_ptr<KeptRRefs> kept; // null: none
  std::shared_ptr<const at::ThreadLocalState> state; // in which the future completes; null: fresh
};

} // namespace torchwire
