// What simulated workers say to each other.
#pragma once

#include <cstdint>
#include <string>

#include "autograd/pass/context_registry.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"
#include "rref/ledger/global_id.h"

namespace torchwire::simulation {

enum class MessageKind : uint32_t {
  call, // may have the callee call a third, and be part of a context
  create, // an RRef on the callee
  pass, // a call with an RRef as its argument
  // Which keep the books:
  forkRequest, // a user to its owner: it is there
  childAccept, // a user to its parent: the owner knows it
  userDelete, // a user to its owner: it is gone
  release, // of a context
};
const char* nameOf(MessageKind kind);

/// A request. A value.
struct Message {
  uint64_t call = 0; // its number in the oracle's books
  MessageKind kind = MessageKind::call;
  WorkerId then = -1; // whom the callee is to call; -1: nobody
  ContextId context = -1; // that it is part of, or that is released
  GlobalId rref{};
  GlobalId fork{}; // of the RRef: the receiver's, or the sender's
  WorkerId owner = -1; // of the RRef
  WorkerId parent = -1; // who has handed it on
  bool keep = false; // what is handed on
  uint32_t padding = 0; // bytes
  std::string pickled; // as PassedForks looks for it

  OutgoingFrame encode() const;
  static Message decode(ReceivedFrame frame);
  /// What `pickled` is of an RRef that is handed on.
  std::string pickle() const;
};

/// Its answer, which says which call it answers. `failed`: what was asked for could not be done.
OutgoingFrame answerTo(uint64_t call, bool failed);
uint64_t answeredIn(ReceivedFrame frame);

} // namespace torchwire::simulation
