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

// X(constant, number on the wire, name in fault plans, answer), with who sends it to whom, and what for.
// clang-format off
#define TORCHWIRE_NODE_REQUESTS(X) \
  /* caller -> callee: it no longer waits for this call */ \
  X(kCancel, 0xa0, "CANCEL", kNoted) \
  /* who has found out -> the others: a worker is dead */ \
  X(kDeath, 0xa2, "DEATH", kNoted) \
  /* who would declare a worker dead -> the others: does anybody answer? */ \
  X(kPing, 0xa4, "PING", kNoted) \
  /* caller -> callee: where are these calls of mine? */ \
  X(kWhereabouts, 0xa6, "WHEREABOUTS", kWhereaboutsReply) \
  /* any -> who serves a store in the place of the rendezvous store, and back: an operation of the store's, or come */ \
  /* over to the one that is served here (backend/membership/peer_stores.h) */ \
  X(kStoreRequest, 0xa8, "STORE_REQUEST", kStoreReply) \
  /* any -> any: what an observer wants to know */ \
  X(kObserve, 0xaa, "OBSERVE", kObserved)
// clang-format on

#define TORCHWIRE_DECLARE(constant, number, name, answer) \
  constexpr uint32_t constant = request(number);
TORCHWIRE_NODE_REQUESTS(TORCHWIRE_DECLARE)
#undef TORCHWIRE_DECLARE

/// PyTorch's, of whichever request: what serves it has raised. The body is a text.
constexpr uint32_t kException = response(0x37);
/// Of whichever request: it has been served, and there is nothing to say.
constexpr uint32_t kNoted = response(0x9b);
/// In place of kException where a call of torchwire's has failed: the body says how (failure.h).
constexpr uint32_t kFailed = response(0xa1);
/// In the same form: the request has not been served, and will not be.
constexpr uint32_t kRefused = response(0xa3);
/// Whether it says how the request has failed, in the place of its answer.
constexpr bool isError(uint32_t response) {
  return response == kException || response == kFailed;
}

constexpr uint32_t kWhereaboutsReply = response(0xa7);
constexpr uint32_t kStoreReply = response(0xa9);
constexpr uint32_t kObserved = response(0xab);

#define TORCHWIRE_ROW(constant, number, name, answer) {constant, name},
inline constexpr OwnRequest kOfNodes[] = {TORCHWIRE_NODE_REQUESTS(TORCHWIRE_ROW)};
#undef TORCHWIRE_ROW

/// The type of what answers such a request; 0: it is none.
constexpr uint32_t answerOf(uint32_t request) {
#define TORCHWIRE_CASE(constant, number, name, answer) \
  case constant:                                       \
    return answer;
  switch (request) {
    TORCHWIRE_NODE_REQUESTS(TORCHWIRE_CASE)
    default:
      return 0;
  }
#undef TORCHWIRE_CASE
}

} // namespace own_requests
} // namespace torchwire
