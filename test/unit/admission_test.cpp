#include "backend/transport/admission.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "test/unit/observed_handshake.h"

using namespace torchwire;

namespace {

// Where the messages have what.
constexpr size_t kMagicAt = 0, kVersionAt = 4, kGroupAt = 8, kGreetingNonceAt = 16;

} // namespace

TEST_CASE("two sides of one group agree", "[admission]") {
  ObservedHandshake handshake;
  handshake.diallersMedium = handshake.portersMedium = GENERATE(Medium::shm, Medium::tcp);
  handshake.lane = handshake.openLane = GENERATE(uint8_t{0}, uint8_t{1}, uint8_t{255});
  handshake.run();
  CHECK(handshake.porterAdmits());
  CHECK(handshake.diallerAgrees());
  CHECK(handshake.admittedLane == handshake.lane);
}

TEST_CASE("the messages of a handshake have fixed sizes", "[admission]") {
  ObservedHandshake handshake;
  handshake.run();
  CHECK(handshake.greeting.size() == kGreetingSize);
  CHECK(handshake.challenge.size() == kChallengeSize);
  CHECK(handshake.proof.size() == kProofSize);
  CHECK(handshake.verdict.size() == kVerdictSize);
  const GroupKey key(kTestGroup, kTestSecret);
  CHECK(Porter(key, Medium::tcp).verdict(Answer::wrongProof).size() == kVerdictSize);
}

TEST_CASE("no two handshakes have a message in common", "[admission]") {
  ObservedHandshake first, second;
  first.run();
  second.run();
  CHECK(first.greeting != second.greeting);
  CHECK(first.challenge != second.challenge);
  CHECK(first.proof != second.proof);
  CHECK(first.verdict != second.verdict);
}

TEST_CASE("a refusal carries no proof", "[admission]") {
  const Answer answer = GENERATE(Answer::wrongProof, Answer::badMemory);
  const GroupKey key(kTestGroup, kTestSecret);
  Applicant applicant(key, Medium::shm, kTestLane);
  Porter porter(key, Medium::shm);
  const auto challenge = porter.challenge(applicant.greet(), [](uint8_t) { return true; });
  REQUIRE(porter.check(applicant.answerChallenge(challenge.send).send));
  const HandshakeBytes verdict = porter.verdict(answer);
  CHECK(std::all_of(
      verdict.begin() + 1, verdict.end(), [](unsigned char byte) { return byte == 0; }));
  CHECK(applicant.judge(verdict) == describe(answer));
}

// ---- who does not belong here ---------------------------------------------------------------------

TEST_CASE(
    "a dialler with another secret is refused, and told nothing that it could use", "[admission]") {
  ObservedHandshake handshake;
  handshake.diallersKey = GroupKey(kTestGroup, "another secret...");
  handshake.run();
  CHECK(handshake.portersAnswer == Answer::wrongProof);
  CHECK(handshake.diallersRefusal == describe(Answer::wrongProof));
  CHECK(handshake.verdict[0] == static_cast<unsigned char>(Answer::wrongProof));
  CHECK(std::count(handshake.verdict.begin() + 1, handshake.verdict.end(), 0) == kProofSize);
}

TEST_CASE(
    "a dialler does not believe a porter that knows no secret and lets everybody in",
    "[admission]") {
  const GroupKey key(kTestGroup, kTestSecret), otherKey(kTestGroup, "another secret...");
  Applicant applicant(key, Medium::tcp, kTestLane);
  Porter impostor(otherKey, Medium::tcp);
  const auto reply = impostor.challenge(applicant.greet(), [](uint8_t) { return true; });
  CHECK_FALSE(impostor.check(applicant.answerChallenge(reply.send).send));
  CHECK(applicant.judge(impostor.verdict(Answer::welcome)) == describe(Answer::wrongProof));
}

TEST_CASE("a dialler of another group, medium or lane is told what is wrong", "[admission]") {
  ObservedHandshake handshake;
  Answer expected = Answer::welcome;
  SECTION("group") {
    handshake.diallersKey = GroupKey(kTestGroup + 1, kTestSecret);
    expected = Answer::otherGroup;
  }
  SECTION("medium") {
    handshake.diallersMedium = Medium::shm;
    expected = Answer::otherMedium;
  }
  SECTION("lane") {
    handshake.lane = kTestLane + 1;
    expected = Answer::noSuchLane;
  }
  SECTION("secret and group: only the group is told") {
    handshake.diallersKey = GroupKey(kTestGroup + 1, "another secret...");
    expected = Answer::otherGroup;
  }
  handshake.run();
  CHECK(handshake.portersAnswer == expected);
  CHECK(handshake.diallersRefusal == describe(expected));
  CHECK_FALSE(handshake.porterAdmits());
  CHECK(handshake.proof.empty());
}

TEST_CASE("another version of the protocol is named, whichever side speaks it", "[admission]") {
  ObservedHandshake handshake;
  const auto otherVersion = [](HandshakeBytes& message) { message[kVersionAt] = 2; };
  handshake.run({.greeting = otherVersion});
  CHECK(handshake.portersAnswer == Answer::otherVersion);
  CHECK(handshake.diallersRefusal == describe(Answer::otherVersion));
  handshake.run({.challenge = otherVersion});
  CHECK(handshake.diallersRefusal == describe(Answer::otherVersion));
}

TEST_CASE("a version is two bytes", "[admission]") {
  ObservedHandshake handshake;
  handshake.run({.greeting = [](HandshakeBytes& message) { message[kVersionAt + 1] = 1; }});
  CHECK(handshake.portersAnswer == Answer::otherVersion);
}

TEST_CASE("what is not the protocol is not understood", "[admission]") {
  const GroupKey key(kTestGroup, kTestSecret);
  const auto anyLane = [](uint8_t) { return true; };
  HandshakeBytes http(kGreetingSize, ' ');
  http[kMagicAt] = 'G';
  CHECK(Porter(key, Medium::tcp).challenge(http, anyLane).answer == Answer::notUnderstood);
  Applicant applicant(key, Medium::tcp, kTestLane);
  applicant.greet();
  const HandshakeBytes answer(kChallengeSize, 'x');
  CHECK(applicant.answerChallenge(answer).refusal == describe(Answer::notUnderstood));
}

TEST_CASE("the nonces and the group have their places in a greeting", "[admission]") {
  ObservedHandshake handshake;
  handshake.run();
  CHECK(handshake.greeting[kGroupAt] == kTestGroup);
  CHECK(
      std::count(
          handshake.greeting.begin() + kGroupAt + 1, handshake.greeting.begin() + kGreetingNonceAt,
          0) == 7);
  CHECK(std::string(handshake.greeting.begin(), handshake.greeting.begin() + 4) == "TWIR");
}

TEST_CASE("every answer has a sentence of its own", "[admission]") {
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
