// The requests that workers make of each other by themselves, which need nothing of PyTorch's (backend/node/), and what
// answers any request that torchwire has of its own.
//
// Each is declared once, in TORCHWIRE_NODE_REQUESTS; those of RRefs, backward passes and devices are in
// backend/serve/own_messages.h. docs/fault_injection.md names all of them, which a test checks.
#pragma once

#include <cstdint>

namespace torchwire {

struct OwnRequest {
  uint32_t type; // as in FrameHeader::messageType
  const char* name; // in fault plans
};

namespace own_requests {

/// From 0x80 on. PyTorch's numbers begin at 0 and come to 0x39; its bits say which are requests, and which responses.
constexpr uint32_t request(uint32_t number) {
  return number | 0x100U;
}
constexpr uint32_t response(uint32_t number) {
  return number | 0x200U;
}

// X(constant, number on the wire, name in fault plans), with who sends it to whom, what answers, and what for.
// clang-format off
#define TORCHWIRE_NODE_REQUESTS(X) \
  /* caller -> callee, noted: it no longer waits for this call */ \
  X(kCancel, 0xa0, "CANCEL") \
  /* who has found out -> the others, noted: a worker is dead */ \
  X(kDeath, 0xa2, "DEATH") \
  /* who would declare a worker dead -> the others, noted: does it hear anybody at all? */ \
  X(kHearing, 0xa4, "HEARING") \
  /* caller -> callee, whereaboutsReply: where are these calls of mine? */ \
  X(kWhereabouts, 0xa6, "WHEREABOUTS") \
  /* any -> who serves a store in the place of the rendezvous store, and back, storeReply: an operation of the store's, or */ \
  /* come over to the one that is served here (backend/membership/peer_stores.h) */ \
  X(kStoreRequest, 0xa8, "STORE_REQUEST") \
  /* any -> any, observed: what an observer wants to know */ \
  X(kObserve, 0xaa, "OBSERVE")
// clang-format on

#define TORCHWIRE_DECLARE(constant, number, name) constexpr uint32_t constant = request(number);
TORCHWIRE_NODE_REQUESTS(TORCHWIRE_DECLARE)
#undef TORCHWIRE_DECLARE

/// Of whichever request: it has been served, and there is nothing to say.
constexpr uint32_t kNoted = response(0x9b);
/// In place of PyTorch's EXCEPTION: a call has failed that the callee had made to serve the request (failure.h).
constexpr uint32_t kFailed = response(0xa1);
/// In the same form: the request has not been served, and will not be.
constexpr uint32_t kRefused = response(0xa3);

constexpr uint32_t kWhereaboutsReply = response(0xa7);
constexpr uint32_t kStoreReply = response(0xa9);
constexpr uint32_t kObserved = response(0xab);

#define TORCHWIRE_ROW(constant, number, name) {constant, name},
inline constexpr OwnRequest kOfNodes[] = {TORCHWIRE_NODE_REQUESTS(TORCHWIRE_ROW)};
#undef TORCHWIRE_ROW

} // namespace own_requests
} // namespace torchwire
