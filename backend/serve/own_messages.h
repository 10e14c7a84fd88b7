// The message types that PyTorch does not have, beside those of backend/wire/own_requests.h: requests between the engines, the
// RRef modules and the device transfers of two workers. They travel like every other message (codec.h) and are served by
// the dispatcher. Each request is declared once, in TORCHWIRE_OWN_MESSAGES.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <cstdint>

#include "backend/wire/own_requests.h"

namespace torchwire::own_messages {

using torch::distributed::rpc::MessageType;

static_assert(
    own_requests::request(0) == torch::distributed::rpc::MessageTypeFlags::REQUEST_TYPE &&
    own_requests::response(0) == torch::distributed::rpc::MessageTypeFlags::RESPONSE_TYPE &&
    own_requests::kException == MessageType::EXCEPTION);

// X(constant, number on the wire, name in fault plans, pool), with who sends it to whom, what answers, and what for.
// clang-format off
#define TORCHWIRE_OWN_MESSAGES(X) \
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
  X(kLaneTrial, 0x9e, "LANE_TRIAL", control)
// clang-format on

#define TORCHWIRE_DECLARE(constant, number, name, pool) \
  constexpr auto constant = static_cast<MessageType>(own_requests::request(number));
TORCHWIRE_OWN_MESSAGES(TORCHWIRE_DECLARE)
#undef TORCHWIRE_DECLARE

constexpr auto kGradientsDone = static_cast<MessageType>(own_requests::response(0x81));
constexpr auto kDiscovered = static_cast<MessageType>(own_requests::response(0x83));
constexpr auto kResumed = static_cast<MessageType>(own_requests::response(0x85));
constexpr auto kPassEnded = static_cast<MessageType>(own_requests::response(0x87));
constexpr auto kHoldersReply = static_cast<MessageType>(own_requests::response(0x93));
constexpr auto kNoted = static_cast<MessageType>(own_requests::kNoted);
constexpr auto kFailed = static_cast<MessageType>(own_requests::kFailed);

#define TORCHWIRE_ROW(constant, number, name, pool) {constant, name},
inline constexpr OwnRequest kOfModules[] = {TORCHWIRE_OWN_MESSAGES(TORCHWIRE_ROW)};
#undef TORCHWIRE_ROW

/// Whether a message's type is that of a request of torchwire's, of this release's or of a later one's.
constexpr bool isOwnRequest(uint32_t messageType) {
  return (messageType & torch::distributed::rpc::MessageTypeFlags::REQUEST_TYPE) != 0 &&
      (messageType & 0xffU) >= 0x80;
}

/// Whether a request runs autograd functions and hooks of the user's.
constexpr bool isEvaluation(uint32_t messageType) {
  constexpr bool evaluation = true, control = false;
#define TORCHWIRE_CASE(constant, number, name, pool) \
  case constant:                                     \
    return pool;
  switch (messageType) {
    TORCHWIRE_OWN_MESSAGES(TORCHWIRE_CASE)
    default:
      return false;
  }
#undef TORCHWIRE_CASE
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
