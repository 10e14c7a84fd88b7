// What becomes of the answers to calls whose futures the program has.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <cstdint>

#include "backend/agent/agent_parts.h"
#include "backend/agent/creations.h"
#include "backend/agent/own_call.h"
#include "backend/agent/waiter_ends.h"
#include "backend/base/error.h"
#include "backend/call/call_table.h"
#include "backend/codec/codec.h"

namespace torchwire {

/// Thread-safe.
class CallCompleter {
 public:
  using Message = torch::distributed::rpc::Message;

  CallCompleter(AgentParts& parts, WaiterEnds& waiterEnds)
      : parts_(parts), waiterEnds_(waiterEnds) {}
  CallCompleter(const CallCompleter&) = delete;
  CallCompleter& operator=(const CallCompleter&) = delete;

  /// Of a call that is about to be opened, which counts as active from now on: what ends it.
  CallTable::Completion begin(OwnCall call);
  /// Fails a call of which nobody has the future yet.
  void failUnseen(OwnCall call, uint64_t callId, const Error& error);

  /// The message, with its tensors where they belong.
  c10::intrusive_ptr<Message> placed(WorkerId from, DecodedMessage decoded) const;
  /// What a call without an answer fails with, once it is noted that it may still run.
  Error unanswered(const CallTarget& call, const Error& error);
  /// After all use of the response, in which libtorch may open the call's context, be it anew, and start further calls. The
  /// thread may hold the GIL.
  void ended(const CallTarget& call) noexcept;

  Creations& creations() {
    return creations_;
  }
  const Creations& creations() const {
    return creations_;
  }

 private:
  void complete(OwnCall call, Outcome outcome);
  void finishCall(const OwnCall& call, Outcome outcome);
  void setFuture(const OwnCall& call, Outcome outcome);
  void finish(OwnCall& call);

  AgentParts& parts_;
  WaiterEnds& waiterEnds_;
  Creations creations_;
};

} // namespace torchwire
