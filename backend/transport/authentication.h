// How two processes of one group recognize each other before anything else passes between them, and agree on keys.
//
//   dialing side                                       accepting side
//     greeting: version, medium, lane, group,
//       addressee, sealing, ephemeral key ─────────────▶
//                 ◀── challenge: version, answer,
//                       algorithm, ephemeral key             (a refusal ends it)
//     proof (wire_shm: with the memory file) ──────────▶    (checked first: an unknown peer learns nothing)
//                 ◀── auth result: answer, proof             (a refusal ends it)
//
// The session key (session_key.h) is made of the group's key, of what the ephemeral keys agree on, and of greeting and
// challenge as each side has said or heard them. A proof is an HMAC under it over the role and what the role says, so it
// cannot be replayed (both ephemeral keys are fresh), nor reflected (the roles differ), nor moved to another lane, medium,
// version or worker, and no choice in it can be changed on the way. Whoever learns the group's key later cannot make the
// session key. The model is Noise's NNpsk0 (docs/decisions.md). Every message has a fixed size: an unknown peer decides
// over no length.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/wire/group_key.h"
#include "backend/wire/record_cipher.h"
#include "backend/wire/session_key.h"

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
  otherSealing = 10, // one side wants the connection sealed, the other must not
  otherAddressee = 11, // the connection was dialed to another address, and passed on
};

/// A sentence for the log and for errors, from the dialing side's point of view or the accepting side's.
std::string describe(Answer answer);

constexpr size_t kGreetingSize = 72;
constexpr size_t kChallengeSize = 40;
constexpr size_t kProofSize = sizeof(Proof);
constexpr size_t kAuthResultSize = 1 + kProofSize;

using HandshakeBytes = std::vector<unsigned char>;
using ForeignBytes = std::span<const unsigned char>;

/// Whether a side wants a connection to be sealed.
enum class Sealing : uint8_t {
  off = 0, // it must not be
  ifWanted = 1, // by the other side
  wanted = 2,
};

/// Stands for a worker's address where that needs no secrecy; 0: for none.
uint64_t tagOf(const std::string& address);

/// What one side brings to a handshake. A value.
struct HandshakeTerms {
  std::string address; // that was dialed, or at which this side is dialed; as text of one form
  std::string dialer = ""; // where the dialing side is dialed, likewise; empty: nowhere
  Sealing sealing = Sealing::off;
  bool hasAes = hasAesInstructions();
};

/// How a connection is sealed in both directions, after a handshake. A value.
struct SealedBy {
  RecordKey outgoing;
  RecordKey incoming;
};

/// The dialing side. Call greet, answerChallenge, judge and sealedBy in this order. Not thread-safe.
class HandshakeInitiator {
 public:
  HandshakeInitiator(GroupKey key, Medium medium, uint8_t lane, HandshakeTerms terms = {});

  HandshakeBytes greet();
  struct Step {
    HandshakeBytes send; // empty when refused
    std::string refusal; // a sentence
  };
  Step answerChallenge(ForeignBytes challenge);
  /// Why the other side must not be talked to, or nothing.
  std::optional<std::string> judge(ForeignBytes authResult) const;
  /// Nothing: not at all.
  std::optional<SealedBy> sealedBy() const;

 private:
  const GroupKey key_;
  const Medium medium_;
  const uint8_t lane_;
  const HandshakeTerms terms_;
  const EphemeralKey ephemeral_;
  HandshakeBytes said_; // by both
  RecordAlgorithm algorithm_ = RecordAlgorithm::none;
  std::optional<SessionKey> session_; // once challenged
};

/// The accepting side. Call challenge, check, authResult and sealedBy in this order. Not thread-safe.
class HandshakeResponder {
 public:
  /// Accepts a dialer that uses any of these keys, which are of one group.
  HandshakeResponder(std::vector<GroupKey> keys, Medium medium, HandshakeTerms terms = {})
      : keys_(std::move(keys)), medium_(medium), terms_(std::move(terms)) {}
  HandshakeResponder(const GroupKey& key, Medium medium, HandshakeTerms terms = {})
      : HandshakeResponder(std::vector<GroupKey>{key}, medium, std::move(terms)) {}

  /// Whether what begins so is a greeting of another version, which may be shorter.
  static bool isOfAnotherVersion(ForeignBytes beginning);

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
  /// Whether the proof holds, and was meant for this side.
  Answer check(ForeignBytes proof);
  HandshakeBytes authResult(Answer answer) const;
  /// Nothing: not at all.
  std::optional<SealedBy> sealedBy() const;

  uint8_t lane() const {
    return lane_;
  }
  /// Of the dialing side's own address, as it says.
  uint64_t dialer() const {
    return dialer_;
  }

 private:
  Answer read(ForeignBytes greeting);
  Answer chooseAlgorithm(unsigned char offer);
  Reply challengeWith(Answer answer);

  const std::vector<GroupKey> keys_;
  const Medium medium_;
  const HandshakeTerms terms_;
  uint8_t lane_ = 0;
  uint64_t dialer_ = 0;
  bool isAddressee_ = false;
  RecordAlgorithm algorithm_ = RecordAlgorithm::none;
  PublicKey other_{};
  HandshakeBytes said_;
  std::vector<SessionKey> sessions_; // once greeted: by each of the keys
  std::optional<SessionKey> session_; // once proven: by the dialer's
};

} // namespace torchwire
