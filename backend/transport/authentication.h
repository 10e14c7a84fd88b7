// How two processes of one group recognize each other before anything else passes between them.
//
//   dialing side                                       accepting side
//     greeting: version, medium, lane, group, nonce ──▶
//                 ◀── challenge: version, answer, nonce      (a refusal ends it)
//     proof (wire_shm: with the memory file) ──────────▶    (checked first: an unknown peer learns nothing)
//                 ◀── auth result: answer, proof             (a refusal ends it)
//
// A proof is an HMAC under the group's key over the role and all bytes said so far, so it cannot be
// replayed (both nonces are in it), nor reflected (the roles differ), nor moved to another lane, medium or
// version. Every message has a fixed size: an unknown peer decides over no length.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/wire/group_key.h"

namespace torchwire {

enum class Medium : uint8_t { shm = 1, tcp = 2 };

/// What the accepting side says; all but `welcome` are refusals.
enum class Answer : uint8_t {
  welcome = 0,
  notUnderstood = 1, // not this protocol, or broken
  otherVersion = 2,
  otherMedium = 3,
  otherGroup = 4,
  noSuchLane = 5,
  wrongProof = 6, // another secret, or a replay
  badMemory = 7, // wire_shm: what came with the proof cannot be used
  outOfFiles = 8, // the accepting process can open none for the connection; which may pass
  outOfMemory = 9, // the accepting process has none for the connection; likewise
};

/// A sentence for the log and for errors, from the dialing side's point of view or the accepting side's.
std::string describe(Answer answer);

constexpr size_t kGreetingSize = 48;
constexpr size_t kChallengeSize = 40;
constexpr size_t kProofSize = sizeof(Proof);
constexpr size_t kAuthResultSize = 1 + kProofSize;

using HandshakeBytes = std::vector<unsigned char>;
using ForeignBytes = std::span<const unsigned char>;

/// The dialing side. Call greet, answerChallenge and judge in this order. Not thread-safe.
class HandshakeInitiator {
 public:
  HandshakeInitiator(const GroupKey& key, Medium medium, uint8_t lane);

  HandshakeBytes greet();
  struct Step {
    HandshakeBytes send; // empty when refused
    std::string refusal; // a sentence
  };
  Step answerChallenge(ForeignBytes challenge);
  /// Why the other side must not be talked to, or nothing.
  std::optional<std::string> judge(ForeignBytes authResult) const;

 private:
  const GroupKey& key_;
  const Medium medium_;
  const uint8_t lane_;
  HandshakeBytes said_; // by both
};

/// The accepting side. Call challenge, check and authResult in this order. Not thread-safe.
class HandshakeResponder {
 public:
  HandshakeResponder(const GroupKey& key, Medium medium) : key_(key), medium_(medium) {}

  /// What to send in return for a greeting; if the answer is a refusal, close after that.
  /// `hasLane` says whether anybody listens on the lane.
  struct Reply {
    Answer answer;
    HandshakeBytes send;
  };
  Reply refuse(ForeignBytes greeting, Answer answer) {
    const Answer other = read(greeting);
    return challengeWith(other == Answer::welcome ? answer : other);
  }
  template <typename HasLane>
  Reply challenge(ForeignBytes greeting, HasLane hasLane) {
    Answer answer = read(greeting);
    if (answer == Answer::welcome && !hasLane(lane_)) {
      answer = Answer::noSuchLane;
    }
    return challengeWith(answer);
  }
  /// Whether the proof holds.
  bool check(ForeignBytes proof);
  HandshakeBytes authResult(Answer answer) const;

  uint8_t lane() const {
    return lane_;
  }

 private:
  Answer read(ForeignBytes greeting);
  Reply challengeWith(Answer answer);

  const GroupKey& key_;
  const Medium medium_;
  uint8_t lane_ = 0;
  HandshakeBytes said_;
};

} // namespace torchwire
