// The message types that PyTorch does not have: requests between the engines and the RRef modules of two
// workers. They travel like every other message (codec.h) and are served by the dispatcher.
//
// | request        | sender -> receiver               | answered by    | what for                                |
// | -------------- | -------------------------------- | -------------- | --------------------------------------- |
// | gradients      | recv function -> send function   | gradientsDone  | gradients of one backward pass          |
// | discover       | who reached a recv function ->   | discovered     | which send functions a pass reaches     |
// |                | the worker of its send function  |                |                                         |
// | resume         | root -> all that were discovered | resumed        | the exact set is known: go on           |
// | endPass        | root -> all that may take part   | passEnded      | the pass has failed: drop it            |
// | creationSite   | creator of an RRef -> its owner  | RREF_ACK       | where the program created it            |
// | creationFailed | creator of an RRef -> its owner  | RREF_ACK       | the request that was to create it has   |
// |                |                                  |                | been lost                               |
// | holdersRequest | owner -> any worker              | holdersReply   | which of these forks live there?        |
// | blocksDone     | receiver of device tensors ->    | noted          | which memory it needs no longer         |
// |                | their sender                     |                | (cuda/transfer/)                        |
// | memoryTrial    | who would send device tensors -> | noted          | can its memory be read there?           |
// |                | who would receive them           |                |                                         |
// | laneMessage    | one end of a lane of NCCL's ->   | noted          | which tensor is to be sent next, or     |
// |                | the other                        |                | that the lane has ended                 |
// | laneTrial      | who would send by NCCL -> who    | noted          | be the receiving end: do bytes come?    |
// |                | would receive                    |                |                                         |
// | cancel         | caller -> callee                 | noted          | it no longer waits for this call        |
// | death          | who has found out -> the others  | noted          | a worker is dead                        |
// | hearing        | who would declare a worker dead  | noted          | does it hear anybody at all?            |
// |                | -> the others                    |                |                                         |
// | whereabouts    | caller -> callee                 | whereaboutsReply | where are these calls of mine?          |
// | observe        | any -> any                       | observed       | what an observer wants to know          |
// | storeRequest   | any -> who serves a store in the | storeReply     | an operation of the store's; or: come   |
// |                | rendezvous store's place; and    |                | over to the one that is served here     |
// |                | back                             |                | (backend/membership/peer_stores.h)      |
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

/// Whether a message's type is that of a request of this file.
constexpr bool isOwnRequest(uint32_t messageType) {
  return (messageType & torch::distributed::rpc::MessageTypeFlags::REQUEST_TYPE) != 0 &&
      (messageType & 0xffU) >= 0x80;
}

constexpr MessageType kGradients = detail::request(0x80);
constexpr MessageType kGradientsDone = detail::response(0x81);
constexpr MessageType kDiscover = detail::request(0x82);
constexpr MessageType kDiscovered = detail::response(0x83);
constexpr MessageType kResume = detail::request(0x84);
constexpr MessageType kResumed = detail::response(0x85);
constexpr MessageType kEndPass = detail::request(0x86);
constexpr MessageType kPassEnded = detail::response(0x87);
/// Whether serving a request runs autograd functions and hooks of the user's.
constexpr bool isEvaluation(uint32_t messageType) {
  return messageType == static_cast<uint32_t>(kGradients) ||
      messageType == static_cast<uint32_t>(kResume);
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

constexpr MessageType kCreationSite = detail::request(0x90);
constexpr MessageType kHoldersRequest = detail::request(0x92);
constexpr MessageType kHoldersReply = detail::response(0x93);
constexpr MessageType kCreationFailed = detail::request(0x94);

constexpr MessageType kBlocksDone = detail::request(0x98);
constexpr MessageType kMemoryTrial = detail::request(0x9a);
constexpr MessageType kNoted = detail::response(0x9b);
constexpr MessageType kLaneMessage = detail::request(0x9c);
constexpr MessageType kLaneTrial = detail::request(0x9e);

constexpr MessageType kCancel = detail::request(0xa0);
constexpr MessageType kFailed = detail::response(0xa1);
constexpr MessageType kRefused = detail::response(0xa3);
constexpr MessageType kDeath = detail::request(0xa2);
constexpr MessageType kHearing = detail::request(0xa4);

constexpr MessageType kWhereabouts = detail::request(0xa6);
constexpr MessageType kWhereaboutsReply = detail::response(0xa7);

constexpr MessageType kObserve = detail::request(0xaa);
constexpr MessageType kObserved = detail::response(0xab);

constexpr MessageType kStoreRequest = detail::request(0xa8);
constexpr MessageType kStoreReply = detail::response(0xa9);

} // namespace torchwire::own_messages
