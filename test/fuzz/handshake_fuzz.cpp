// The handshake, with somebody in between who may change, cut, invent and replay every message.

#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "backend/transport/authentication.h"
#include "backend/wire/group_key.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

constexpr int kMaxHandshakes = 3;
constexpr size_t kMaxMessage = 256;
constexpr uint64_t kGroup = 7, kOtherGroup = 8;

// ---- numbers that an input alone decides, so that a finding can be repeated --------------------------

Digest seed; // the input's digest at first, incremented with each draw

void drawInto(void* into, size_t size) {
  sodium_increment(seed.data(), seed.size());
  randombytes_buf_deterministic(into, size, seed.data());
}

uint32_t draw() {
  uint32_t number = 0;
  drawInto(&number, sizeof(number));
  return number;
}

randombytes_implementation repeatable{
    [] { return "repeatable"; }, draw, nullptr, nullptr, drawInto, nullptr};

// ---- who talks ---------------------------------------------------------------------------------------

struct Party {
  const GroupKey* key;
  Medium medium;
  uint8_t lane; // dialed, or listened on
  bool operator==(const Party&) const = default;
};

Party chooseParty(Script& script) {
  static const std::array<GroupKey, 3> keys = {
      GroupKey(kGroup, "sixteen bytes at least"),
      GroupKey(kGroup, "another secret of this length"),
      GroupKey(kOtherGroup, "sixteen bytes at least"),
  };
  return {
      &keys[script.ConsumeIntegralInRange<size_t>(0, keys.size() - 1)],
      script.ConsumeBool() ? Medium::shm : Medium::tcp,
      script.ConsumeIntegral<uint8_t>(),
  };
}

/// Passes messages on, or not quite.
class Intruder {
 public:
  explicit Intruder(Script& script) : script_(script) {}

  HandshakeBytes deliver(const HandshakeBytes& sent) {
    HandshakeBytes delivered = tamper(sent);
    heard_.push_back(sent);
    isHonest_ = isHonest_ && delivered == sent;
    return delivered;
  }
  /// Whether all arrived as it was sent.
  bool isHonest() const {
    return isHonest_;
  }
  void beginAnew() {
    isHonest_ = true;
  }

 private:
  enum class Trick { none, change, cut, extend, replay, invent, kMaxValue = invent };

  HandshakeBytes tamper(HandshakeBytes message) {
    switch (script_.ConsumeEnum<Trick>()) {
      case Trick::none:
        break;
      case Trick::change:
        if (!message.empty()) {
          const size_t at = script_.ConsumeIntegralInRange<size_t>(0, message.size() - 1);
          message[at] ^= script_.ConsumeIntegral<unsigned char>();
        }
        break;
      case Trick::cut:
        message.resize(script_.ConsumeIntegralInRange<size_t>(0, message.size()));
        break;
      case Trick::extend:
        message.resize(script_.ConsumeIntegralInRange<size_t>(message.size(), kMaxMessage));
        break;
      case Trick::replay:
        return heard_.empty()
            ? message
            : heard_[script_.ConsumeIntegralInRange<size_t>(0, heard_.size() - 1)];
      case Trick::invent:
        return script_.ConsumeBytes<unsigned char>(
            script_.ConsumeIntegralInRange<size_t>(0, kMaxMessage));
    }
    return message;
  }

  Script& script_;
  std::vector<HandshakeBytes> heard_; // from both, also in earlier handshakes
  bool isHonest_ = true;
};

// ---- what they say -----------------------------------------------------------------------------------

Answer expectedAnswer(const Party& dialing, const Party& accepting) {
  if (dialing.medium != accepting.medium) {
    return Answer::otherMedium;
  }
  if (dialing.key->groupId() != accepting.key->groupId()) {
    return Answer::otherGroup;
  }
  return dialing.lane == accepting.lane ? Answer::welcome : Answer::noSuchLane;
}

bool revealsNothing(const HandshakeBytes& authResult) {
  return std::all_of(
      authResult.begin() + 1, authResult.end(), [](unsigned char byte) { return byte == 0; });
}

/// Both sides as the transports drive them: Acceptor::PendingHandshake and Connector.
void talk(const Party& dialing, const Party& accepting, bool memoryIsGood, Intruder& between) {
  HandshakeInitiator initiator(*dialing.key, dialing.medium, dialing.lane);
  HandshakeResponder responder(*accepting.key, accepting.medium);

  const HandshakeResponder::Reply reply = responder.challenge(
      between.deliver(initiator.greet()), [&](uint8_t lane) { return lane == accepting.lane; });
  require(reply.send.size() == kChallengeSize, "a challenge has its size");
  require(
      !between.isHonest() || reply.answer == expectedAnswer(dialing, accepting),
      "an unchanged greeting gets the right answer");

  const HandshakeBytes challenge = between.deliver(reply.send);
  const HandshakeInitiator::Step step = initiator.answerChallenge(challenge);
  require(step.send.empty() != step.refusal.empty(), "the dialing side goes on or says why not");
  require(
      step.send.empty() || (step.send.size() == kProofSize && challenge.size() == kChallengeSize),
      "a challenge and the proof have their sizes");

  bool admitted = false;
  HandshakeBytes authResult;
  const HandshakeBytes proof = between.deliver(step.send);
  if (reply.answer == Answer::welcome) {
    const Answer checked = responder.check(proof);
    admitted = checked == Answer::welcome;
    require(!admitted || between.isHonest(), "nobody is admitted with changed bytes");
    require(!admitted || dialing == accepting, "nobody is admitted to another's place");
    require(!admitted || responder.lane() == dialing.lane, "the lane is the one that was dialed");
    const Answer judgement = admitted && !memoryIsGood ? Answer::badMemory : Answer::welcome;
    authResult = responder.authResult(admitted ? judgement : checked);
    require(authResult.size() == kAuthResultSize, "an auth result has its size");
    admitted = admitted && memoryIsGood;
    require(
        checked != Answer::wrongProof || revealsNothing(authResult),
        "who has proved nothing learns nothing");
  }

  const HandshakeBytes judged = between.deliver(authResult);
  const bool trusts = !step.send.empty() && !initiator.judge(judged);
  require(!trusts || (admitted && between.isHonest()), "only who admits this side is trusted");
  require(
      admitted == trusts || !between.isHonest() || dialing != accepting,
      "without an intruder both come to the same end");
  require(
      trusts || !between.isHonest() || dialing != accepting || !memoryIsGood,
      "without an intruder members of a group find each other");
}

void run(Script script) {
  const Party first = chooseParty(script);
  const Party second = script.ConsumeBool() ? first : chooseParty(script);
  Intruder between(script);
  for (int i = 0; i < kMaxHandshakes && script.remaining_bytes() != 0; ++i) {
    between.beginAnew();
    const bool turned = script.ConsumeBool();
    talk(turned ? second : first, turned ? first : second, script.ConsumeBool(), between);
  }
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  return randombytes_set_implementation(&torchwire::repeatable);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::seed = torchwire::digestOf(data, size);
  torchwire::run(torchwire::Script(data, size));
  return 0;
}
