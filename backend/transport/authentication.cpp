#include "backend/transport/authentication.h"

#include <algorithm>
#include <cstring>

namespace torchwire {
namespace {

// Greeting:  0 magic  4 version  6 medium  7 lane  8 group id  16 nonce
// Challenge: 0 magic  4 version  6 answer  7 zero  8 nonce
constexpr unsigned char kMagic[4] = {'T', 'W', 'I', 'R'};
constexpr uint16_t kVersion = 1;
constexpr size_t kVersionAt = 4, kMediumAt = 6, kAnswerAt = 6, kLaneAt = 7;
constexpr size_t kGroupAt = 8, kGreetingNonceAt = 16, kChallengeNonceAt = 8;
static_assert(kGreetingNonceAt + sizeof(Nonce) == kGreetingSize);
static_assert(kChallengeNonceAt + sizeof(Nonce) == kChallengeSize);

constexpr char kDialing[] = "dialling side"; // goes into the proofs, so that its spelling stays
constexpr char kAccepting[] = "accepting side";

template <typename Number>
void put(HandshakeBytes& bytes, size_t at, Number number) {
  for (size_t i = 0; i < sizeof number; ++i) {
    bytes[at + i] = static_cast<unsigned char>(number >> (8 * i));
  }
}

template <typename Number>
Number get(ForeignBytes bytes, size_t at) {
  Number number = 0;
  for (size_t i = 0; i < sizeof number; ++i) {
    number = static_cast<Number>(number | (Number{bytes[at + i]} << (8 * i)));
  }
  return number;
}

HandshakeBytes opening(size_t size, size_t nonceAt) {
  HandshakeBytes bytes(size);
  std::copy(std::begin(kMagic), std::end(kMagic), bytes.begin());
  put(bytes, kVersionAt, kVersion);
  const Nonce nonce = GroupKey::drawNonce();
  std::copy(nonce.begin(), nonce.end(), bytes.begin() + static_cast<ptrdiff_t>(nonceAt));
  return bytes;
}

bool hasMagic(ForeignBytes bytes) {
  return std::equal(std::begin(kMagic), std::end(kMagic), bytes.begin());
}

Proof asProof(ForeignBytes bytes) {
  Proof proof;
  std::copy_n(bytes.begin(), proof.size(), proof.begin());
  return proof;
}

void append(HandshakeBytes& to, ForeignBytes bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

Answer answerOf(unsigned char byte) {
  return byte <= static_cast<unsigned char>(Answer::outOfMemory) ? static_cast<Answer>(byte)
                                                                 : Answer::notUnderstood;
}

} // namespace

std::string describe(Answer answer) {
  switch (answer) {
    case Answer::welcome:
      return "welcome";
    case Answer::notUnderstood:
      return "it does not speak torchwire's protocol";
    case Answer::otherVersion:
      return "the versions of torchwire's transport protocol differ: install the same torchwire on "
             "all workers";
    case Answer::otherMedium:
      return "one side speaks of wire_shm and the other of wire_tcp";
    case Answer::otherGroup:
      return "it belongs to another RPC group: check the address of the rendezvous store";
    case Answer::noSuchLane:
      return "nobody listens on the lane that was asked for: the worker shuts down, or has other "
             "_channels";
    case Answer::wrongProof:
      return "the group secrets differ: give all workers the same secret (option `secret` or "
             "TORCHWIRE_SECRET_FILE)";
    case Answer::badMemory:
      return "the shared memory that came with the proof cannot be used";
    case Answer::outOfFiles:
      return "its process has reached its limit of open files (ulimit -n): raise that limit";
    case Answer::outOfMemory:
      return "its process has no memory for another connection: raise the limit that it has "
             "reached (ulimit -v, "
             "ulimit -d, or its host's)";
  }
  return "an unknown reason";
}

// ---- dialing -------------------------------------------------------------------------------------

HandshakeInitiator::HandshakeInitiator(const GroupKey& key, Medium medium, uint8_t lane)
    : key_(key), medium_(medium), lane_(lane) {}

HandshakeBytes HandshakeInitiator::greet() {
  HandshakeBytes greeting = opening(kGreetingSize, kGreetingNonceAt);
  greeting[kMediumAt] = static_cast<unsigned char>(medium_);
  greeting[kLaneAt] = lane_;
  put(greeting, kGroupAt, key_.groupId());
  said_ = greeting;
  return greeting;
}

HandshakeInitiator::Step HandshakeInitiator::answerChallenge(ForeignBytes challenge) {
  if (challenge.size() != kChallengeSize || !hasMagic(challenge)) {
    return {{}, describe(Answer::notUnderstood)};
  }
  const Answer answer = answerOf(challenge[kAnswerAt]);
  if (answer != Answer::welcome) {
    return {{}, describe(answer)};
  }
  if (get<uint16_t>(challenge, kVersionAt) != kVersion) {
    return {{}, describe(Answer::otherVersion)};
  }
  append(said_, challenge);
  const Proof proof = key_.prove(kDialing, said_);
  append(said_, proof);
  return {HandshakeBytes(proof.begin(), proof.end()), {}};
}

std::optional<std::string> HandshakeInitiator::judge(ForeignBytes authResult) const {
  if (authResult.size() != kAuthResultSize) {
    return describe(Answer::notUnderstood);
  }
  const Answer answer = answerOf(authResult[0]);
  if (answer != Answer::welcome) {
    return describe(answer);
  }
  if (!key_.verify(kAccepting, said_, asProof(authResult.subspan(1)))) {
    return describe(Answer::wrongProof);
  }
  return std::nullopt;
}

// ---- accepting ------------------------------------------------------------------------------------

Answer HandshakeResponder::read(ForeignBytes greeting) {
  if (greeting.size() != kGreetingSize || !hasMagic(greeting)) {
    return Answer::notUnderstood;
  }
  append(said_, greeting);
  lane_ = greeting[kLaneAt];
  if (get<uint16_t>(greeting, kVersionAt) != kVersion) {
    return Answer::otherVersion;
  }
  if (greeting[kMediumAt] != static_cast<unsigned char>(medium_)) {
    return Answer::otherMedium;
  }
  return get<uint64_t>(greeting, kGroupAt) == key_.groupId() ? Answer::welcome : Answer::otherGroup;
}

HandshakeResponder::Reply HandshakeResponder::challengeWith(Answer answer) {
  HandshakeBytes challenge = opening(kChallengeSize, kChallengeNonceAt);
  challenge[kAnswerAt] = static_cast<unsigned char>(answer);
  append(said_, challenge);
  return {answer, std::move(challenge)};
}

bool HandshakeResponder::check(ForeignBytes proof) {
  const bool right = proof.size() == kProofSize && key_.verify(kDialing, said_, asProof(proof));
  append(said_, proof);
  return right;
}

HandshakeBytes HandshakeResponder::authResult(Answer answer) const {
  HandshakeBytes authResult{static_cast<unsigned char>(answer)};
  if (answer == Answer::welcome) {
    append(authResult, key_.prove(kAccepting, said_));
  } else {
    authResult.resize(kAuthResultSize);
  }
  return authResult;
}

} // namespace torchwire
