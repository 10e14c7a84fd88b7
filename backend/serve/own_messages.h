// The message types that PyTorch does not have: requests between the engines and the RRef modules of two
// workers. They travel like every other message (codec.h) and are served by the dispatcher. Each request is declared
// once, in TORCHWIRE_OWN_REQUESTS; docs/fault_injection.md names them, too, which a test checks.
//
// Any request may be answered by `failed` in place of PyTorch's EXCEPTION: a call has failed that its callee had made to
// serve it (backend/wire/failure.h). Or by `refused`, in the same form: it has not been served, and will not be.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <cstdint>

namespace torchwire::own_messages {

using torch::distributed::rpc::MessageType;

namespace detail {
// PyTorch's own numbers are below 0x40 and may grow to 0x7f before they meet these.
constexpr MessageType request(int number) {
  return static_cast<MessageType>(number | torch::distributed::rpc::MessageTypeFlags::REQUEST_TYPE);
}
constexpr MessageType response(int number) {
  return static_cast<MessageType>(
      number | torch::distributed::rpc::MessageTypeFlags::RESPONSE_TYPE);
}
} // namespace detail

/// What serves a request: the evaluation pool where it runs autograd functions and hooks of the user's.
enum class Pool { control, evaluation };

// X(constant, number on the wire, name in fault plans, pool), with who sends it to whom, what answers, and what for.
// clang-format off
#define TORCHWIRE_OWN_REQUESTS(X) \
  /* recv function -> send function, gradientsDone: gradients of one backward pass */ \
  X(kGradients, 0x80, "GRADIENTS", evaluation) \
  /* who reached a recv function -> the worker of its send function, discovered: which send functions a pass reaches */ \
  X(kDiscover, 0x82, "DISCOVER", control) \
  /* root -> all that were discovered, resumed: the exact set is known, go on */ \
  X(kResume, 0x84, "RESUME", evaluation) \
  /* root -> all that may take part, passEnded: the pass has failed, drop it */ \
  X(kEndPass, 0x86, "END_PASS", control) \
  /* creator of an RRef -> its owner, RREF_ACK: where the program created it */ \
  X(kCreationSite, 0x90, "CREATION_SITE", control) \
  /* owner -> any worker, holdersReply: which of these forks live there? */ \
  X(kHoldersRequest, 0x92, "HOLDERS_REQUEST", control) \
  /* creator of an RRef -> its owner, RREF_ACK: the request that was to create it has been lost */ \
  X(kCreationFailed, 0x94, "CREATION_FAILED", control) \
  /* receiver of device tensors -> their sender, noted: which memory it needs no longer (cuda/transfer/) */ \
  X(kBlocksDone, 0x98, "BLOCKS_DONE", control) \
  /* who would send device tensors -> who would receive them, noted: can its memory be read there? */ \
  X(kMemoryTrial, 0x9a, "MEMORY_TRIAL", control) \
  /* one end of a lane of NCCL's -> the other, noted: which tensor is to be sent next, or that the lane has ended */ \
  X(kLaneMessage, 0x9c, "LANE_MESSAGE", control) \
  /* who would send by NCCL -> who would receive, noted: be the receiving end, do bytes come? */ \
  X(kLaneTrial, 0x9e, "LANE_TRIAL", control) \
  /* caller -> callee, noted: it no longer waits for this call */ \
  X(kCancel, 0xa0, "CANCEL", control) \
  /* who has found out -> the others, noted: a worker is dead */ \
  X(kDeath, 0xa2, "DEATH", control) \
  /* who would declare a worker dead -> the others, noted: does it hear anybody at all? */ \
  X(kHearing, 0xa4, "HEARING", control) \
  /* caller -> callee, whereaboutsReply: where are these calls of mine? */ \
  X(kWhereabouts, 0xa6, "WHEREABOUTS", control) \
  /* any -> who serves a store in the place of the rendezvous store, and back, storeReply: an operation of the store's, or */ \
  /* come over to the one that is served here (backend/membership/peer_stores.h) */ \
  X(kStoreRequest, 0xa8, "STORE_REQUEST", control) \
  /* any -> any, observed: what an observer wants to know */ \
  X(kObserve, 0xaa, "OBSERVE", control)
// clang-format on

#define TORCHWIRE_DECLARE(constant, number, name, pool) \
  constexpr MessageType constant = detail::request(number);
TORCHWIRE_OWN_REQUESTS(TORCHWIRE_DECLARE)
#undef TORCHWIRE_DECLARE

constexpr MessageType kGradientsDone = detail::response(0x81);
constexpr MessageType kDiscovered = detail::response(0x83);
constexpr MessageType kResumed = detail::response(0x85);
constexpr MessageType kPassEnded = detail::response(0x87);
constexpr MessageType kHoldersReply = detail::response(0x93);
constexpr MessageType kNoted = detail::response(0x9b);
constexpr MessageType kFailed = detail::response(0xa1);
constexpr MessageType kRefused = detail::response(0xa3);
constexpr MessageType kWhereaboutsReply = detail::response(0xa7);
constexpr MessageType kStoreReply = detail::response(0xa9);
constexpr MessageType kObserved = detail::response(0xab);

struct OwnRequest {
  MessageType type;
  const char* name; // in fault plans
  Pool pool;
};

#define TORCHWIRE_ROW(constant, number, name, pool) {constant, name, Pool::pool},
inline constexpr OwnRequest kRequests[] = {TORCHWIRE_OWN_REQUESTS(TORCHWIRE_ROW)};
#undef TORCHWIRE_ROW

/// The row of a request of this file; null: it is none.
constexpr const OwnRequest* find(uint32_t messageType) {
  for (const OwnRequest& request : kRequests) {
    if (static_cast<uint32_t>(request.type) == messageType) {
      return &request;
    }
  }
  return nullptr;
}

/// Whether a message's type is that of a request of this file, or of a later release's.
constexpr bool isOwnRequest(uint32_t messageType) {
  return (messageType & torch::distributed::rpc::MessageTypeFlags::REQUEST_TYPE) != 0 &&
      (messageType & 0xffU) >= 0x80;
}

constexpr bool isEvaluation(uint32_t messageType) {
  const OwnRequest* const request = isOwnRequest(messageType) ? find(messageType) : nullptr;
  return request != nullptr && request->pool == Pool::evaluation;
}

/// The first bytes of bodies that libtorch cannot read, in messages of its own types (direct_call.h,
/// autograd/direct_forward.h). A pickle, which libtorch writes there, begins with 0x80.
namespace direct_body {
constexpr char kResult = 1;
constexpr char kCall = 2;
constexpr char kAsyncCall = 3;
constexpr char kForward = 4;
} // namespace direct_body

/// Whether a request is a PYTHON_CALL that libtorch cannot read (direct_call.h).
inline bool isDirectCall(const torch::distributed::rpc::Message& request) {
  const auto& body = request.payload();
  return request.type() == MessageType::PYTHON_CALL && !body.empty() &&
      (body.front() == direct_body::kCall || body.front() == direct_body::kAsyncCall);
}

} // namespace torchwire::own_messages
