#include "backend/transport/authentication.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "test/unit/support/observed_handshake.h"

using namespace torchwire;

namespace {

// Where the messages have what.
constexpr size_t kMagicAt = 0, kVersionAt = 4, kGroupAt = 8, kGreetingNonceAt = 16;

} // namespace

TEST_CASE("two sides of one group agree", "[authentication]") {
  ObservedHandshake handshake;
  handshake.initiatorsMedium = handshake.respondersMedium = GENERATE(Medium::shm, Medium::tcp);
  handshake.lane = handshake.openLane = GENERATE(uint8_t{0}, uint8_t{1}, uint8_t{255});
  handshake.run();
  CHECK(handshake.responderAdmits());
  CHECK(handshake.initiatorAgrees());
  CHECK(handshake.admittedLane == handshake.lane);
}

TEST_CASE("the messages of a handshake have fixed sizes", "[authentication]") {
  ObservedHandshake handshake;
  handshake.run();
  CHECK(handshake.greeting.size() == kGreetingSize);
  CHECK(handshake.challenge.size() == kChallengeSize);
  CHECK(handshake.proof.size() == kProofSize);
  CHECK(handshake.authResult.size() == kAuthResultSize);
  const GroupKey key(kTestGroup, kTestSecret);
  CHECK(
      HandshakeResponder(key, Medium::tcp).authResult(Answer::wrongProof).size() ==
      kAuthResultSize);
}

TEST_CASE("no two handshakes have a message in common", "[authentication]") {
  ObservedHandshake first, second;
  first.run();
  second.run();
  CHECK(first.greeting != second.greeting);
  CHECK(first.challenge != second.challenge);
  CHECK(first.proof != second.proof);
  CHECK(first.authResult != second.authResult);
}

TEST_CASE("a refusal carries no proof", "[authentication]") {
  const Answer answer = GENERATE(Answer::wrongProof, Answer::badMemory);
  const GroupKey key(kTestGroup, kTestSecret);
  HandshakeInitiator initiator(key, Medium::shm, kTestLane);
  HandshakeResponder responder(key, Medium::shm);
  const auto challenge = responder.challenge(initiator.greet(), [](uint8_t) { return true; });
  REQUIRE(responder.check(initiator.answerChallenge(challenge.send).send));
  const HandshakeBytes authResult = responder.authResult(answer);
  CHECK(std::all_of(authResult.begin() + 1, authResult.end(), [](unsigned char byte) {
    return byte == 0;
  }));
  CHECK(initiator.judge(authResult) == describe(answer));
}

// ---- who does not belong here ---------------------------------------------------------------------

TEST_CASE(
    "a dialer with another secret is refused, and told nothing that it could use",
    "[authentication]") {
  ObservedHandshake handshake;
  handshake.initiatorsKey = GroupKey(kTestGroup, "another secret...");
  handshake.run();
  CHECK(handshake.respondersAnswer == Answer::wrongProof);
  CHECK(handshake.initiatorsRefusal == describe(Answer::wrongProof));
  CHECK(handshake.authResult[0] == static_cast<unsigned char>(Answer::wrongProof));
  CHECK(std::count(handshake.authResult.begin() + 1, handshake.authResult.end(), 0) == kProofSize);
}

TEST_CASE(
    "a dialer does not believe a responder that knows no secret and lets everybody in",
    "[authentication]") {
  const GroupKey key(kTestGroup, kTestSecret), otherKey(kTestGroup, "another secret...");
  HandshakeInitiator initiator(key, Medium::tcp, kTestLane);
  HandshakeResponder impostor(otherKey, Medium::tcp);
  const auto reply = impostor.challenge(initiator.greet(), [](uint8_t) { return true; });
  CHECK_FALSE(impostor.check(initiator.answerChallenge(reply.send).send));
  CHECK(initiator.judge(impostor.authResult(Answer::welcome)) == describe(Answer::wrongProof));
}

TEST_CASE("a dialer of another group, medium or lane is told what is wrong", "[authentication]") {
  ObservedHandshake handshake;
  Answer expected = Answer::welcome;
  SECTION("group") {
    handshake.initiatorsKey = GroupKey(kTestGroup + 1, kTestSecret);
    expected = Answer::otherGroup;
  }
  SECTION("medium") {
    handshake.initiatorsMedium = Medium::shm;
    expected = Answer::otherMedium;
  }
  SECTION("lane") {
    handshake.lane = kTestLane + 1;
    expected = Answer::noSuchLane;
  }
  SECTION("secret and group: only the group is told") {
    handshake.initiatorsKey = GroupKey(kTestGroup + 1, "another secret...");
    expected = Answer::otherGroup;
  }
  handshake.run();
  CHECK(handshake.respondersAnswer == expected);
  CHECK(handshake.initiatorsRefusal == describe(expected));
  CHECK_FALSE(handshake.responderAdmits());
  CHECK(handshake.proof.empty());
}

TEST_CASE(
    "another version of the protocol is named, whichever side speaks it", "[authentication]") {
  ObservedHandshake handshake;
  const auto otherVersion = [](HandshakeBytes& message) { message[kVersionAt] = 2; };
  handshake.run({.greeting = otherVersion});
  CHECK(handshake.respondersAnswer == Answer::otherVersion);
  CHECK(handshake.initiatorsRefusal == describe(Answer::otherVersion));
  handshake.run({.challenge = otherVersion});
  CHECK(handshake.initiatorsRefusal == describe(Answer::otherVersion));
}

TEST_CASE("a version is two bytes", "[authentication]") {
  ObservedHandshake handshake;
  handshake.run({.greeting = [](HandshakeBytes& message) { message[kVersionAt + 1] = 1; }});
  CHECK(handshake.respondersAnswer == Answer::otherVersion);
}

TEST_CASE("what is not the protocol is not understood", "[authentication]") {
  const GroupKey key(kTestGroup, kTestSecret);
  const auto anyLane = [](uint8_t) { return true; };
  HandshakeBytes http(kGreetingSize, ' ');
  http[kMagicAt] = 'G';
  CHECK(
      HandshakeResponder(key, Medium::tcp).challenge(http, anyLane).answer ==
      Answer::notUnderstood);
  HandshakeInitiator initiator(key, Medium::tcp, kTestLane);
  initiator.greet();
  const HandshakeBytes answer(kChallengeSize, 'x');
  CHECK(initiator.answerChallenge(answer).refusal == describe(Answer::notUnderstood));
}

TEST_CASE("the nonces and the group have their places in a greeting", "[authentication]") {
  ObservedHandshake handshake;
  handshake.run();
  CHECK(handshake.greeting[kGroupAt] == kTestGroup);
  CHECK(
      std::count(
          handshake.greeting.begin() + kGroupAt + 1, handshake.greeting.begin() + kGreetingNonceAt,
          0) == 7);
  CHECK(std::string(handshake.greeting.begin(), handshake.greeting.begin() + 4) == "TWIR");
}

TEST_CASE("every answer has a sentence of its own", "[authentication]") {
  std::vector<std::string> sentences;
  for (unsigned char answer = 0; answer <= static_cast<unsigned char>(Answer::badMemory);
       ++answer) {
    sentences.push_back(describe(static_cast<Answer>(answer)));
  }
  CHECK(describe(Answer::welcome) == "welcome");
  CHECK_THAT(describe(Answer::otherVersion), Catch::Contains("install the same torchwire"));
  CHECK_THAT(
      describe(Answer::otherGroup), Catch::Contains("check the address of the rendezvous store"));
  CHECK_THAT(describe(Answer::noSuchLane), Catch::Contains("has other _channels"));
  CHECK_THAT(describe(Answer::wrongProof), Catch::Contains("TORCHWIRE_SECRET_FILE"));
  std::sort(sentences.begin(), sentences.end());
  CHECK(std::unique(sentences.begin(), sentences.end()) == sentences.end());
  CHECK(describe(static_cast<Answer>(200)) == "an unknown reason");
}
