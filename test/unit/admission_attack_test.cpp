#include "backend/transport/admission.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "test/unit/observed_handshake.h"

using namespace torchwire;

namespace {

// Where the messages have what.
constexpr size_t kMediumAt = 6, kAnswerAt = 6, kLaneAt = 7;

} // namespace

// ---- messages that were tampered with -------------------------------------------------------------

TEST_CASE("no message may have a single bit changed", "[admission]") {
  struct Target {
    const char* name;
    size_t size;
    HandshakeChange HandshakeChanges::*change;
  };
  const Target target = GENERATE(
      Target{"greeting", kGreetingSize, &HandshakeChanges::greeting},
      Target{"challenge", kChallengeSize, &HandshakeChanges::challenge},
      Target{"proof", kProofSize, &HandshakeChanges::proof},
      Target{"verdict", kVerdictSize, &HandshakeChanges::verdict});
  CAPTURE(target.name);
  for (size_t bit = 0; bit < 8 * target.size; ++bit) {
    CAPTURE(bit);
    ObservedHandshake handshake;
    HandshakeChanges changes;
    changes.*target.change = [bit](HandshakeBytes& message) {
      message[bit / 8] = static_cast<unsigned char>(message[bit / 8] ^ (1 << bit % 8));
    };
    handshake.run(changes);
    if (handshake.diallerAgrees()) {
      FAIL("the dialler noticed nothing");
    }
    // Its own verdict, on the way back, is the only message that the porter cannot check.
    if (std::string(target.name) != "verdict" && handshake.porterAdmits()) {
      FAIL("the porter noticed nothing");
    }
    if (handshake.diallersRefusal.empty()) {
      FAIL("the dialler does not say what is wrong");
    }
  }
}

TEST_CASE("no message may be any byte shorter or longer", "[admission]") {
  const GroupKey key(kTestGroup, kTestSecret);
  const auto anyLane = [](uint8_t) { return true; };
  const auto resized = [](HandshakeBytes message, size_t size) {
    message.resize(size);
    return message;
  };
  for (size_t size = 0; size < 100; ++size) {
    CAPTURE(size);
    Applicant applicant(key, Medium::tcp, kTestLane);
    const HandshakeBytes greeting = applicant.greet();
    Porter porter(key, Medium::tcp);
    if (size != kGreetingSize) {
      Porter cheated(key, Medium::tcp);
      CHECK(cheated.challenge(resized(greeting, size), anyLane).answer == Answer::notUnderstood);
    }
    const HandshakeBytes challenge = porter.challenge(greeting, anyLane).send;
    if (size != kChallengeSize) {
      Applicant cheated = applicant;
      CHECK(
          cheated.answerChallenge(resized(challenge, size)).refusal ==
          describe(Answer::notUnderstood));
    }
    const HandshakeBytes proof = applicant.answerChallenge(challenge).send;
    if (size != kProofSize) {
      Porter cheated = porter;
      CHECK_FALSE(cheated.check(resized(proof, size)));
    }
    CHECK(porter.check(proof));
    const HandshakeBytes verdict = porter.verdict(Answer::welcome);
    if (size != kVerdictSize) {
      CHECK(applicant.judge(resized(verdict, size)) == describe(Answer::notUnderstood));
    }
    CHECK_FALSE(applicant.judge(verdict).has_value());
  }
}

TEST_CASE("an answer that nobody has defined is not understood", "[admission]") {
  for (unsigned answer = static_cast<unsigned>(Answer::badMemory) + 1; answer < 256; ++answer) {
    ObservedHandshake handshake;
    handshake.run({.challenge = [answer](HandshakeBytes& message) {
      message[kAnswerAt] = static_cast<unsigned char>(answer);
    }});
    REQUIRE(handshake.diallersRefusal == describe(Answer::notUnderstood));
    handshake.run({.verdict = [answer](HandshakeBytes& message) {
      message[0] = static_cast<unsigned char>(answer);
    }});
    REQUIRE(handshake.diallersRefusal == describe(Answer::notUnderstood));
  }
}

TEST_CASE("random bytes are refused at every step", "[admission]") {
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
        &changes.greeting, &changes.challenge, &changes.proof, &changes.verdict};
    const size_t step = random() % 4;
    *steps[step] = scramble;
    handshake.run(changes);
    REQUIRE_FALSE(handshake.diallerAgrees());
    REQUIRE((step == 3 || !handshake.porterAdmits()));
  }
}

// ---- messages from elsewhere ----------------------------------------------------------------------

TEST_CASE("a recorded handshake cannot be replayed to another porter", "[admission]") {
  ObservedHandshake recorded;
  recorded.run();
  REQUIRE(recorded.porterAdmits());
  Porter porter(recorded.portersKey, Medium::tcp);
  const auto reply = porter.challenge(recorded.greeting, [](uint8_t) { return true; });
  CHECK(reply.answer == Answer::welcome); // a greeting alone proves nothing
  CHECK_FALSE(porter.check(recorded.proof));
}

TEST_CASE("a recorded handshake cannot be replayed to another dialler", "[admission]") {
  ObservedHandshake recorded;
  recorded.run();
  Applicant applicant(recorded.diallersKey, Medium::tcp, kTestLane);
  applicant.greet();
  CHECK(applicant.answerChallenge(recorded.challenge).refusal.empty());
  CHECK(applicant.judge(recorded.verdict) == describe(Answer::wrongProof));
}

TEST_CASE("a porter's proof is no dialler's proof", "[admission]") {
  // Somebody without the key dials a worker, and has a dialler of the group answer in its place; or the
  // other way round.
  const GroupKey key(kTestGroup, kTestSecret);
  const auto anyLane = [](uint8_t) { return true; };
  Applicant applicant(key, Medium::tcp, kTestLane);
  Porter porter(key, Medium::tcp);
  const HandshakeBytes challenge = porter.challenge(applicant.greet(), anyLane).send;
  const HandshakeBytes proof = applicant.answerChallenge(challenge).send;
  Porter fooled = porter;
  REQUIRE(porter.check(proof));
  const HandshakeBytes verdict = porter.verdict(Answer::welcome);
  CHECK_FALSE(fooled.check(ForeignBytes(verdict).subspan(1)));
  HandshakeBytes reflected{static_cast<unsigned char>(Answer::welcome)};
  reflected.insert(reflected.end(), proof.begin(), proof.end());
  CHECK(applicant.judge(reflected) == describe(Answer::wrongProof));
}

TEST_CASE("a dialler's own messages sent back to it are refused", "[admission]") {
  const GroupKey key(kTestGroup, kTestSecret);
  Applicant applicant(key, Medium::tcp, kTestLane);
  const HandshakeBytes greeting = applicant.greet();
  CHECK(applicant.answerChallenge(greeting).refusal == describe(Answer::notUnderstood));
  HandshakeBytes cut = greeting;
  cut.resize(kChallengeSize);
  cut[kAnswerAt] = static_cast<unsigned char>(Answer::welcome);
  const HandshakeBytes proof = applicant.answerChallenge(cut).send;
  HandshakeBytes verdict{static_cast<unsigned char>(Answer::welcome)};
  verdict.insert(verdict.end(), proof.begin(), proof.end());
  CHECK(applicant.judge(verdict) == describe(Answer::wrongProof));
}

TEST_CASE("a proof for one lane or medium does not open another", "[admission]") {
  const GroupKey key(kTestGroup, kTestSecret);
  const auto anyLane = [](uint8_t) { return true; };
  const bool changesLane = GENERATE(true, false);
  Applicant applicant(key, Medium::tcp, kTestLane);
  HandshakeBytes greeting = applicant.greet();
  if (changesLane) {
    greeting[kLaneAt] = kTestLane + 1;
  } else {
    greeting[kMediumAt] = static_cast<unsigned char>(Medium::shm);
  }
  Porter porter(key, changesLane ? Medium::tcp : Medium::shm);
  const auto reply = porter.challenge(greeting, anyLane);
  REQUIRE(reply.answer == Answer::welcome);
  CHECK_FALSE(porter.check(applicant.answerChallenge(reply.send).send));
}
