// What goes wrong on purpose: rules that match messages, and what they do to them.
//
// A call passes these points, at each of which one rule may apply to it:
//
//      caller                                       callee
//   request ──▶ request goes out ═══ midTensor ═══▶ inFlight: it has arrived and is about to be served
//                                                      │
//   (the call ends) ◀═══ midTensor ═══ response goes out ◀── response
//
// | action    | connect | request | inFlight | response | midTensor | what happens                        |
// | --------- | ------- | ------- | -------- | -------- | --------- | ----------------------------------- |
// | drop      |         | yes     | yes      | yes      | yes       | the frame gets lost, silently. In mid-tensor its rest does, and what is behind it waits, until a new plan breaks the link |
// | fail      |         | yes     | yes      | yes      |           | the caller gets an error at once; inFlight: while the callee serves the request |
// | delay     |         | yes     | yes      | yes      | yes       | it goes on after `seconds`; others may overtake it, but not in mid-tensor |
// | duplicate |         | yes     | yes      | yes      |           | it arrives twice                    |
// | reorder   |         | yes     | yes      | yes      |           | it goes after the next one on the link, or after `seconds` |
// | corrupt   |         | yes     | yes      | yes      | yes       | one byte is changed                 |
// | close     |         | yes     | yes      | yes      | yes       | the link breaks; request, response: before the frame, inFlight: the request is served all the same |
// | refuse    | yes     |         |          |          |           | the dial fails as if nobody listened |
// | pause     |         | yes     | yes      | yes      | yes       | the process (caller for request, else callee) stands still for `seconds` |
// | kill      |         | yes     | yes      | yes      | yes       | the process ends as by kill -9      |
// | partition |         |         |          |          |           | from `after` seconds on, for `seconds`, no frame passes between two sets of workers; then all go on |
//
// In mid-tensor the process that is meant is the one that sends the tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torchwire::faults {

enum class Phase : uint8_t { connect, request, inFlight, response, midTensor };

enum class Action : uint8_t {
  drop,
  fail,
  delay,
  duplicate,
  reorder,
  corrupt,
  close,
  refuse,
  pause,
  kill,
  partition,
};

/// As in Python and in logs: "in_flight", "drop".
const char* nameOf(Phase phase);
const char* nameOf(Action action);

/// A time in seconds that is drawn anew for each fault. Never negative.
struct Duration {
  enum class Shape : uint8_t {
    fixed, // a
    uniform, // from a to b
    normal, // mean a, standard deviation b
    exponential, // mean a
  };
  Shape shape = Shape::fixed;
  double a = 0;
  double b = 0;

  /// The time for two independent numbers drawn from [0, 1).
  double at(double first, double second) const;
};

/// A rule matches by message type, workers and phase, all of which are the same for all messages of a
/// *stream*: those of one type from one caller to one callee, in one phase. (In phase response, too, the
/// type is that of the request, and `from` is the caller.) Occurrences are counted from 1, for each stream
/// apart and from the moment that the plan takes effect. So which of them a rule applies to depends on nothing
/// but the plan: not on how threads and workers happen to interleave.
struct Rule {
  std::string name; // letters, digits and " _-.:/#" only: it is written to logs as it is
  Action action = Action::drop;
  Phase phase = Phase::request;
  std::vector<uint32_t> messages; // types of requests; empty: all
  std::vector<std::string> from,
      to; // names or shell patterns (fnmatch); empty: all. Partition: the two sets

  std::vector<uint64_t> nth; // the occurrences that it may apply to; empty: all
  double probability = 1; // with which it applies to one of those
  uint64_t atLeast = 0; // it applies to the first so many of those whatever the probability
  uint64_t atMost = 0; // of a stream; 0: any number
  // Occurrences are counted among messages of the stream with the same content: with retries of one request.
  bool eachMessage = false;

  Duration seconds; // of delay, reorder, pause, partition
  double after = 0; // partition: seconds from the plan's taking effect until it begins
  std::optional<uint64_t> byte; // corrupt: which of the frame's (modulo its length); else drawn
};

/// The first rule that applies to a message is the only one to do so.
struct Plan {
  uint64_t revision = 0; // counts the plans of a group; shown in logs
  uint64_t seed = 0;
  std::vector<Rule> rules;
};

/// Whether the table above has the action at the phase. A partition's phase does not matter.
bool isPossible(Action action, Phase phase);

/// A sentence that says what is wrong with a plan, or nothing.
std::optional<std::string> objectionTo(const Plan& plan);

} // namespace torchwire::faults
