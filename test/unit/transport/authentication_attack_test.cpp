#include "backend/transport/authentication.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "test/unit/support/observed_handshake.h"

using namespace torchwire;

namespace {

// Where the messages have what.
constexpr size_t kMediumAt = 6, kAnswerAt = 6, kLaneAt = 7;

} // namespace

// ---- messages that were tampered with -------------------------------------------------------------

TEST_CASE("no message may have a single bit changed", "[authentication]") {
  struct Target {
    const char* name;
    size_t size;
    HandshakeChange HandshakeChanges::* change;
  };
  const Target target = GENERATE(
      Target{"greeting", kGreetingSize, &HandshakeChanges::greeting},
      Target{"challenge", kChallengeSize, &HandshakeChanges::challenge},
      Target{"proof", kProofSize, &HandshakeChanges::proof},
      Target{"auth result", kAuthResultSize, &HandshakeChanges::authResult});
  CAPTURE(target.name);
  for (size_t bit = 0; bit < 8 * target.size; ++bit) {
    CAPTURE(bit);
    ObservedHandshake handshake;
    HandshakeChanges changes;
    changes.*target.change = [bit](HandshakeBytes& message) {
      message[bit / 8] = static_cast<unsigned char>(message[bit / 8] ^ (1 << bit % 8));
    };
    handshake.run(changes);
    if (handshake.initiatorAgrees()) {
      FAIL("the dialer noticed nothing");
    }
    // Its own auth result, on the way back, is the only message that the responder cannot check.
    if (std::string(target.name) != "auth result" && handshake.responderAdmits()) {
      FAIL("the responder noticed nothing");
    }
    if (handshake.initiatorsRefusal.empty()) {
      FAIL("the dialer does not say what is wrong");
    }
  }
}

TEST_CASE("no message may be any byte shorter or longer", "[authentication]") {
  const GroupKey key(kTestGroup, kTestSecret);
  const auto anyLane = [](uint8_t) { return true; };
  const auto resized = [](HandshakeBytes message, size_t size) {
    message.resize(size);
    return message;
  };
  for (size_t size = 0; size < 100; ++size) {
    CAPTURE(size);
    HandshakeInitiator initiator(key, Medium::tcp, kTestLane);
    const HandshakeBytes greeting = initiator.greet();
    HandshakeResponder responder(key, Medium::tcp);
    if (size != kGreetingSize) {
      HandshakeResponder cheated(key, Medium::tcp);
      CHECK(cheated.challenge(resized(greeting, size), anyLane).answer == Answer::notUnderstood);
    }
    const HandshakeBytes challenge = responder.challenge(greeting, anyLane).send;
    if (size != kChallengeSize) {
      HandshakeInitiator cheated = initiator;
      CHECK(
          cheated.answerChallenge(resized(challenge, size)).refusal ==
          describe(Answer::notUnderstood));
    }
    const HandshakeBytes proof = initiator.answerChallenge(challenge).send;
    if (size != kProofSize) {
      HandshakeResponder cheated = responder;
      CHECK(cheated.check(resized(proof, size)) == Answer::wrongProof);
    }
    CHECK(responder.check(proof) == Answer::welcome);
    const HandshakeBytes authResult = responder.authResult(Answer::welcome);
    if (size != kAuthResultSize) {
      CHECK(initiator.judge(resized(authResult, size)) == describe(Answer::notUnderstood));
    }
    CHECK_FALSE(initiator.judge(authResult).has_value());
  }
}

TEST_CASE("an answer that nobody has defined is not understood", "[authentication]") {
  for (unsigned answer = static_cast<unsigned>(Answer::otherAddressee) + 1; answer < 256;
       ++answer) {
    ObservedHandshake handshake;
    handshake.run({.challenge = [answer](HandshakeBytes& message) {
      message[kAnswerAt] = static_cast<unsigned char>(answer);
    }});
    REQUIRE(handshake.initiatorsRefusal == describe(Answer::notUnderstood));
    handshake.run({.authResult = [answer](HandshakeBytes& message) {
      message[0] = static_cast<unsigned char>(answer);
    }});
    REQUIRE(handshake.initiatorsRefusal == describe(Answer::wrongProof)); // it is not what was said
  }
}

TEST_CASE("random bytes are refused at every step", "[authentication]") {
  const unsigned seed = GENERATE(range(0u, 20u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto scramble = [&](HandshakeBytes& message) {
    message.resize(random() % 100);
    for (unsigned char& byte : message) {
      byte = static_cast<unsigned char>(random());
    }
  };
  for (int i = 0; i < 100; ++i) {
    ObservedHandshake handshake;
    HandshakeChanges changes;
    HandshakeChange* steps[] = {
        &changes.greeting, &changes.challenge, &changes.proof, &changes.authResult};
    const size_t step = random() % 4;
    *steps[step] = scramble;
    handshake.run(changes);
    REQUIRE_FALSE(handshake.initiatorAgrees());
    REQUIRE((step == 3 || !handshake.responderAdmits()));
  }
}

// ---- messages from elsewhere ----------------------------------------------------------------------

TEST_CASE("a recorded handshake cannot be replayed to another responder", "[authentication]") {
  ObservedHandshake recorded;
  recorded.run();
  REQUIRE(recorded.responderAdmits());
  HandshakeResponder responder(recorded.respondersKey, Medium::tcp);
  const auto reply = responder.challenge(recorded.greeting, [](uint8_t) { return true; });
  CHECK(reply.answer == Answer::welcome); // a greeting alone proves nothing
  CHECK(responder.check(recorded.proof) == Answer::wrongProof);
}

TEST_CASE("a recorded handshake cannot be replayed to another dialer", "[authentication]") {
  ObservedHandshake recorded;
  recorded.run();
  HandshakeInitiator initiator(recorded.initiatorsKey, Medium::tcp, kTestLane);
  initiator.greet();
  CHECK(initiator.answerChallenge(recorded.challenge).refusal.empty());
  CHECK(initiator.judge(recorded.authResult) == describe(Answer::wrongProof));
}

TEST_CASE("a responder's proof is no dialer's proof", "[authentication]") {
  // Somebody without the key dials a worker, and has a dialer of the group answer in its place; or the
  // other way round.
  const GroupKey key(kTestGroup, kTestSecret);
  const auto anyLane = [](uint8_t) { return true; };
  HandshakeInitiator initiator(key, Medium::tcp, kTestLane);
  HandshakeResponder responder(key, Medium::tcp);
  const HandshakeBytes challenge = responder.challenge(initiator.greet(), anyLane).send;
  const HandshakeBytes proof = initiator.answerChallenge(challenge).send;
  HandshakeResponder fooled = responder;
  REQUIRE(responder.check(proof) == Answer::welcome);
  const HandshakeBytes authResult = responder.authResult(Answer::welcome);
  CHECK(fooled.check(ForeignBytes(authResult).subspan(1)) == Answer::wrongProof);
  HandshakeBytes reflected{static_cast<unsigned char>(Answer::welcome)};
  reflected.insert(reflected.end(), proof.begin(), proof.end());
  CHECK(initiator.judge(reflected) == describe(Answer::wrongProof));
}

TEST_CASE("a dialer's own messages sent back to it are refused", "[authentication]") {
  const GroupKey key(kTestGroup, kTestSecret);
  HandshakeInitiator initiator(key, Medium::tcp, kTestLane);
  const HandshakeBytes greeting = initiator.greet();
  CHECK(initiator.answerChallenge(greeting).refusal == describe(Answer::notUnderstood));
  HandshakeBytes cut = greeting;
  cut.resize(kChallengeSize);
  cut[kAnswerAt] = static_cast<unsigned char>(Answer::welcome);
  cut[kLaneAt] = 0; // where a challenge has its algorithm
  const HandshakeBytes proof = initiator.answerChallenge(cut).send;
  HandshakeBytes authResult{static_cast<unsigned char>(Answer::welcome)};
  authResult.insert(authResult.end(), proof.begin(), proof.end());
  CHECK(initiator.judge(authResult) == describe(Answer::wrongProof));
}

TEST_CASE("a proof for one lane or medium does not open another", "[authentication]") {
  const GroupKey key(kTestGroup, kTestSecret);
  const auto anyLane = [](uint8_t) { return true; };
  const bool changesLane = GENERATE(true, false);
  HandshakeInitiator initiator(key, Medium::tcp, kTestLane);
  HandshakeBytes greeting = initiator.greet();
  if (changesLane) {
    greeting[kLaneAt] = kTestLane + 1;
  } else {
    greeting[kMediumAt] = static_cast<unsigned char>(Medium::shm);
  }
  HandshakeResponder responder(key, changesLane ? Medium::tcp : Medium::shm);
  const auto reply = responder.challenge(greeting, anyLane);
  REQUIRE(reply.answer == Answer::welcome);
  CHECK(responder.check(initiator.answerChallenge(reply.send).send) == Answer::wrongProof);
}
