// What somebody who is no member of a group may ask its workers, and how he is answered.
//
// An observer dials a worker's wire_tcp, on a lane that says what he wants to know, and proves that he knows the group's
// secret, as a peer does (transport/authentication.h). He says nothing more. The worker sends one answer and closes:
// how it went (u8: 0 an answer, 1 an error), the length (u64), and so many bytes of text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace torchwire {

/// By the number of its lane: a proof for one is of no use for the other.
enum class ObserverQuestion : uint8_t {
  dump = 254, // all calls under way, with stacks
  status = 255, // what `top` shows
};

struct ObserverAnswer {
  bool failed = false; // the text says why, and is a sentence
  std::string text;
};

/// Called once, or not at all where this worker shuts down. On any thread.
using ObserverReply = std::function<void(ObserverAnswer)>;
/// Has the question answered on a thread that may block. False: there is none any more.
using AskForObserver = std::function<bool(ObserverQuestion, ObserverReply)>;

} // namespace torchwire
