#include "backend/transport/authentication.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>

namespace torchwire {
namespace {

// Greeting:  0 magic  4 version  6 medium  7 lane       8 group id  16 addressee  32 sealing  33 dialer  40 ephemeral key
// Challenge: 0 magic  4 version  6 answer  7 algorithm  8 ephemeral key
constexpr unsigned char kMagic[4] = {'T', 'W', 'I', 'R'};
constexpr uint16_t kVersion = 2;
constexpr size_t kVersionAt = 4, kMediumAt = 6, kAnswerAt = 6, kLaneAt = 7, kAlgorithmAt = 7;
constexpr size_t kGroupAt = 8, kAddresseeAt = 16, kSealingAt = 32, kDialerAt = 33;
constexpr size_t kGreetingKeyAt = 40, kChallengeKeyAt = 8;
constexpr size_t kTagBytes = kGreetingKeyAt - kDialerAt;
constexpr unsigned char kSealingBits = 3, kHasAes = 4; // of the byte at kSealingAt
static_assert(kGreetingKeyAt + sizeof(PublicKey) == kGreetingSize);
static_assert(kChallengeKeyAt + sizeof(PublicKey) == kChallengeSize);

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

HandshakeBytes opening(size_t size) {
  HandshakeBytes bytes(size);
  std::copy(std::begin(kMagic), std::end(kMagic), bytes.begin());
  put(bytes, kVersionAt, kVersion);
  return bytes;
}

void putKey(HandshakeBytes& bytes, size_t at, const EphemeralKey& ephemeral) {
  const PublicKey& key = ephemeral.publicKey();
  std::copy(key.begin(), key.end(), bytes.begin() + static_cast<ptrdiff_t>(at));
}

PublicKey keyIn(ForeignBytes bytes, size_t at) {
  PublicKey key;
  std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), key.size(), key.begin());
  return key;
}

/// A hash, so that every address has the same size.
using AddressHash = std::array<unsigned char, kSealingAt - kAddresseeAt>;
AddressHash addresseeOf(const std::string& address) {
  AddressHash hash;
  crypto_generichash(
      hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(address.data()),
      address.size(), nullptr, 0);
  return hash;
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
  return byte <= static_cast<unsigned char>(Answer::otherAddressee) ? static_cast<Answer>(byte)
                                                                    : Answer::notUnderstood;
}

std::optional<RecordAlgorithm> algorithmOf(unsigned char byte) {
  return byte <= static_cast<unsigned char>(RecordAlgorithm::chaCha20Poly1305)
      ? std::optional(static_cast<RecordAlgorithm>(byte))
      : std::nullopt;
}

/// Whether a side that thinks so may be sealed with that.
bool agreesWith(Sealing sealing, RecordAlgorithm algorithm) {
  const bool seals = algorithm != RecordAlgorithm::none;
  return sealing == Sealing::ifWanted || (sealing == Sealing::wanted) == seals;
}

std::optional<SealedBy> sealed(
    const std::optional<SessionKey>& session, RecordAlgorithm algorithm, const char* own,
    const char* other) {
  if (!session || algorithm == RecordAlgorithm::none) {
    return std::nullopt;
  }
  return SealedBy{session->recordKey(own, algorithm), session->recordKey(other, algorithm)};
}

uint64_t tagIn(ForeignBytes greeting) {
  uint64_t tag = 0;
  for (size_t i = 0; i < kTagBytes; ++i) {
    tag |= uint64_t{greeting[kDialerAt + i]} << (8 * i);
  }
  return tag;
}

} // namespace

uint64_t tagOf(const std::string& address) {
  if (address.empty()) {
    return 0;
  }
  return get<uint64_t>(addresseeOf(address), 0) & ((uint64_t{1} << (8 * kTagBytes)) - 1);
}

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
    case Answer::otherSealing:
      return "one side wants the connection encrypted and the other does not: give all workers the "
             "same `encryption`";
    case Answer::otherAddressee:
      return "the connection was meant for another address, and somebody has passed it on: check "
             "what the rendezvous store says, and the network";
  }
  return "an unknown reason";
}

// ---- dialing -------------------------------------------------------------------------------------

HandshakeInitiator::HandshakeInitiator(
    GroupKey key, Medium medium, uint8_t lane, HandshakeTerms terms)
    : key_(std::move(key)), medium_(medium), lane_(lane), terms_(std::move(terms)) {}

HandshakeBytes HandshakeInitiator::greet() {
  HandshakeBytes greeting = opening(kGreetingSize);
  putKey(greeting, kGreetingKeyAt, ephemeral_);
  greeting[kMediumAt] = static_cast<unsigned char>(medium_);
  greeting[kLaneAt] = lane_;
  put(greeting, kGroupAt, key_.groupId());
  const auto addressee = addresseeOf(terms_.address);
  std::copy(addressee.begin(), addressee.end(), greeting.begin() + kAddresseeAt);
  greeting[kSealingAt] = static_cast<unsigned char>(
      static_cast<unsigned char>(terms_.sealing) | (terms_.hasAes ? kHasAes : 0));
  const uint64_t dialer = tagOf(terms_.dialer);
  for (size_t i = 0; i < kTagBytes; ++i) {
    greeting[kDialerAt + i] = static_cast<unsigned char>(dialer >> (8 * i));
  }
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
  const auto algorithm = algorithmOf(challenge[kAlgorithmAt]);
  if (!algorithm) {
    return {{}, describe(Answer::notUnderstood)};
  }
  algorithm_ = *algorithm;
  if (!agreesWith(terms_.sealing, algorithm_)) {
    return {{}, describe(Answer::otherSealing)};
  }
  append(said_, challenge);
  session_ = SessionKey::derive(key_, ephemeral_, keyIn(challenge, kChallengeKeyAt), said_);
  if (!session_) {
    return {{}, describe(Answer::wrongProof)};
  }
  const Proof proof = session_->prove(kDialing, {});
  return {HandshakeBytes(proof.begin(), proof.end()), {}};
}

std::optional<std::string> HandshakeInitiator::judge(ForeignBytes authResult) const {
  if (authResult.size() != kAuthResultSize) {
    return describe(Answer::notUnderstood);
  }
  const bool isProven =
      session_ && session_->verify(kAccepting, authResult.first(1), asProof(authResult.subspan(1)));
  if (!isProven) {
    return describe(Answer::wrongProof);
  }
  const Answer answer = answerOf(authResult[0]);
  return answer == Answer::welcome ? std::nullopt : std::optional(describe(answer));
}

std::optional<SealedBy> HandshakeInitiator::sealedBy() const {
  return sealed(session_, algorithm_, kDialing, kAccepting);
}

// ---- accepting ------------------------------------------------------------------------------------

bool HandshakeResponder::isOfAnotherVersion(ForeignBytes beginning) {
  return beginning.size() >= kMediumAt && hasMagic(beginning) &&
      get<uint16_t>(beginning, kVersionAt) != kVersion;
}

Answer HandshakeResponder::read(ForeignBytes greeting) {
  if (isOfAnotherVersion(greeting)) {
    return Answer::otherVersion;
  }
  if (greeting.size() != kGreetingSize || !hasMagic(greeting)) {
    return Answer::notUnderstood;
  }
  append(said_, greeting);
  lane_ = greeting[kLaneAt];
  dialer_ = tagIn(greeting);
  if (greeting[kMediumAt] != static_cast<unsigned char>(medium_)) {
    return Answer::otherMedium;
  }
  if (get<uint64_t>(greeting, kGroupAt) != keys_.front().groupId()) {
    return Answer::otherGroup;
  }
  other_ = keyIn(greeting, kGreetingKeyAt);
  const auto addressee = addresseeOf(terms_.address);
  isAddressee_ = std::equal(addressee.begin(), addressee.end(), greeting.begin() + kAddresseeAt);
  return chooseAlgorithm(greeting[kSealingAt]);
}

/// Of an offer that has been changed on the way nothing comes of: the proofs are of another session key.
Answer HandshakeResponder::chooseAlgorithm(unsigned char offer) {
  const auto theirs = static_cast<Sealing>(offer & kSealingBits);
  if (theirs > Sealing::wanted) {
    return Answer::notUnderstood;
  }
  if (theirs == Sealing::wanted || terms_.sealing == Sealing::wanted) {
    algorithm_ = terms_.hasAes && (offer & kHasAes) != 0 ? RecordAlgorithm::aes256Gcm
                                                         : RecordAlgorithm::chaCha20Poly1305;
  }
  return agreesWith(theirs, algorithm_) && agreesWith(terms_.sealing, algorithm_)
      ? Answer::welcome
      : Answer::otherSealing;
}

HandshakeResponder::Reply HandshakeResponder::challengeWith(Answer answer) {
  HandshakeBytes challenge = opening(kChallengeSize);
  challenge[kAnswerAt] = static_cast<unsigned char>(answer);
  if (answer == Answer::welcome) { // a key for nobody else, since it takes its time
    challenge[kAlgorithmAt] = static_cast<unsigned char>(algorithm_);
    const EphemeralKey ephemeral;
    putKey(challenge, kChallengeKeyAt, ephemeral);
    append(said_, challenge);
    sessions_ = SessionKey::derive(keys_, ephemeral, other_, said_);
  }
  return {answer, std::move(challenge)};
}

Answer HandshakeResponder::check(ForeignBytes proof) {
  for (const SessionKey& session : sessions_) {
    if (proof.size() == kProofSize && session.verify(kDialing, {}, asProof(proof))) {
      session_ = session;
    }
  }
  return !session_ ? Answer::wrongProof : isAddressee_ ? Answer::welcome : Answer::otherAddressee;
}

/// To whom has proved nothing, nothing is proved.
HandshakeBytes HandshakeResponder::authResult(Answer answer) const {
  HandshakeBytes authResult{static_cast<unsigned char>(answer)};
  if (answer != Answer::wrongProof && session_) {
    append(authResult, session_->prove(kAccepting, authResult));
  } else {
    authResult.resize(kAuthResultSize);
  }
  return authResult;
}

std::optional<SealedBy> HandshakeResponder::sealedBy() const {
  return sealed(session_, algorithm_, kAccepting, kDialing);
}

} // namespace torchwire
