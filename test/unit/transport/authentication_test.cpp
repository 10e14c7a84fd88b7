#include "backend/transport/authentication.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "test/unit/support/observed_handshake.h"

using namespace torchwire;

namespace {

// Where the messages have what.
constexpr size_t kMagicAt = 0, kVersionAt = 4, kGroupAt = 8, kAddresseeAt = 16;

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

TEST_CASE("a refusal of whom has proved to be of the group is proven too", "[authentication]") {
  const GroupKey key(kTestGroup, kTestSecret);
  HandshakeInitiator initiator(key, Medium::shm, kTestLane);
  HandshakeResponder responder(key, Medium::shm);
  const auto challenge = responder.challenge(initiator.greet(), [](uint8_t) { return true; });
  REQUIRE(responder.check(initiator.answerChallenge(challenge.send).send) == Answer::welcome);
  HandshakeBytes authResult = responder.authResult(Answer::badMemory);
  CHECK(initiator.judge(authResult) == describe(Answer::badMemory));
  authResult[0] = static_cast<unsigned char>(Answer::outOfMemory);
  CHECK(initiator.judge(authResult) == describe(Answer::wrongProof));
}

// ---- sealing --------------------------------------------------------------------------------------

TEST_CASE("a connection is sealed as both sides agree", "[authentication]") {
  struct Case {
    Sealing initiators, responders;
    bool agree, sealed;
  };
  using enum Sealing;
  const Case both = GENERATE(
      Case{off, off, true, false}, Case{off, ifWanted, true, false},
      Case{off, wanted, false, false}, Case{ifWanted, ifWanted, true, false},
      Case{ifWanted, wanted, true, true}, Case{wanted, wanted, true, true});
  const bool turned = GENERATE(false, true);
  ObservedHandshake handshake;
  handshake.initiatorsTerms.sealing = turned ? both.responders : both.initiators;
  handshake.respondersTerms.sealing = turned ? both.initiators : both.responders;
  handshake.run();
  CHECK(handshake.initiatorAgrees() == both.agree);
  CHECK(handshake.responderAdmits() == both.agree);
  CHECK(handshake.initiatorSealedBy.has_value() == both.sealed);
  CHECK(handshake.responderSealedBy.has_value() == both.sealed);
  if (!both.agree) {
    CHECK(handshake.initiatorsRefusal == describe(Answer::otherSealing));
  }
}

TEST_CASE("both sides have the same keys, another for each direction", "[authentication]") {
  ObservedHandshake handshake, another;
  const bool initiatorHasAes = GENERATE(true, false), responderHasAes = GENERATE(true, false);
  for (ObservedHandshake* each : {&handshake, &another}) {
    each->initiatorsTerms.sealing = Sealing::wanted;
    each->initiatorsTerms.hasAes = initiatorHasAes;
    each->respondersTerms.sealing = Sealing::ifWanted;
    each->respondersTerms.hasAes = responderHasAes;
    each->run();
    REQUIRE(each->initiatorSealedBy);
    REQUIRE(each->responderSealedBy);
  }
  const SealedBy& initiators = *handshake.initiatorSealedBy;
  const SealedBy& responders = *handshake.responderSealedBy;
  CHECK(initiators.outgoing.key == responders.incoming.key);
  CHECK(initiators.outgoing.nonce == responders.incoming.nonce);
  CHECK(initiators.incoming.key == responders.outgoing.key);
  CHECK(initiators.incoming.nonce == responders.outgoing.nonce);
  CHECK(initiators.outgoing.key != initiators.incoming.key);
  CHECK(initiators.outgoing.key != another.initiatorSealedBy->outgoing.key);
  const RecordAlgorithm expected = initiatorHasAes && responderHasAes
      ? RecordAlgorithm::aes256Gcm
      : RecordAlgorithm::chaCha20Poly1305;
  CHECK(initiators.outgoing.algorithm == expected);
  CHECK(responders.outgoing.algorithm == expected);
}

TEST_CASE("a responder accepts a dialer by any of its keys", "[authentication]") {
  const GroupKey used(kTestGroup, kTestSecret), another(kTestGroup, "another secret...");
  const GroupKey third(kTestGroup, "a third secret...");
  const HandshakeTerms terms{.address = kTestAddress, .sealing = Sealing::wanted};
  const auto [key, answer] = GENERATE_COPY(
      std::pair(used, Answer::welcome), std::pair(another, Answer::welcome),
      std::pair(third, Answer::wrongProof));
  HandshakeInitiator initiator(key, Medium::tcp, kTestLane, terms);
  HandshakeResponder responder({used, another}, Medium::tcp, terms);
  const auto reply = responder.challenge(initiator.greet(), [](uint8_t) { return true; });
  REQUIRE(responder.check(initiator.answerChallenge(reply.send).send) == answer);
  const bool agrees = !initiator.judge(responder.authResult(answer));
  CHECK(agrees == (answer == Answer::welcome));
  if (agrees) {
    CHECK(initiator.sealedBy()->outgoing.key == responder.sealedBy()->incoming.key);
  }
}

TEST_CASE("nobody on the way can have a connection not sealed", "[authentication]") {
  constexpr size_t kSealingAt = 32, kAlgorithmAt = 7;
  ObservedHandshake handshake;
  handshake.initiatorsTerms.sealing = handshake.respondersTerms.sealing = Sealing::wanted;
  SECTION("in the greeting alone") {
    handshake.respondersTerms.sealing = Sealing::ifWanted;
    handshake.run({.greeting = [](HandshakeBytes& message) { message[kSealingAt] = 1; }});
  }
  SECTION("in the challenge") {
    handshake.run({.challenge = [](HandshakeBytes& message) { message[kAlgorithmAt] = 0; }});
  }
  SECTION("in both, of sides that would go without") {
    handshake.initiatorsTerms.sealing = handshake.respondersTerms.sealing = Sealing::ifWanted;
    handshake.run({.greeting = [](HandshakeBytes& message) { message[kSealingAt] = 0; }});
  }
  CHECK_FALSE(handshake.initiatorAgrees());
  CHECK_FALSE(handshake.responderAdmits());
}

TEST_CASE(
    "what was dialed to another address is refused, whoever passes it on", "[authentication]") {
  ObservedHandshake handshake;
  handshake.initiatorsTerms.address = "10.0.0.66:4711";
  handshake.run();
  CHECK(handshake.respondersAnswer == Answer::otherAddressee);
  CHECK(handshake.initiatorsRefusal == describe(Answer::otherAddressee));
  CHECK_FALSE(handshake.responderAdmits());
}

TEST_CASE("a key by which nothing would be agreed on is refused", "[authentication]") {
  constexpr size_t kGreetingKeyAt = 40, kChallengeKeyAt = 8;
  ObservedHandshake handshake;
  SECTION("the dialer's") {
    handshake.run({.greeting = [](HandshakeBytes& message) {
      std::fill(message.begin() + kGreetingKeyAt, message.end(), 0);
    }});
  }
  SECTION("the responder's") {
    handshake.run({.challenge = [](HandshakeBytes& message) {
      std::fill(message.begin() + kChallengeKeyAt, message.end(), 0);
    }});
  }
  CHECK_FALSE(handshake.initiatorAgrees());
  CHECK_FALSE(handshake.responderAdmits());
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
  CHECK(impostor.check(initiator.answerChallenge(reply.send).send) == Answer::wrongProof);
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
  const auto otherVersion = [](HandshakeBytes& message) { message[kVersionAt] = 1; };
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

TEST_CASE("the group has its place in a greeting", "[authentication]") {
  ObservedHandshake handshake;
  handshake.run();
  CHECK(handshake.greeting[kGroupAt] == kTestGroup);
  CHECK(
      std::count(
          handshake.greeting.begin() + kGroupAt + 1, handshake.greeting.begin() + kAddresseeAt,
          0) == 7);
  CHECK(std::string(handshake.greeting.begin(), handshake.greeting.begin() + 4) == "TWIR");
}

TEST_CASE("every answer has a sentence of its own", "[authentication]") {
  std::vector<std::string> sentences;
  for (unsigned char answer = 0; answer <= static_cast<unsigned char>(Answer::otherAddressee);
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

TEST_CASE("the accepting side hears where the dialing one is dialed", "[authentication]") {
  const GroupKey key(1, "a secret of sixteen bytes or more");
  const auto anyLane = [](uint8_t) { return true; };
  HandshakeInitiator dialing(
      key, Medium::tcp, 0, {.address = "10.0.0.1:5", .dialer = "10.0.0.2:6"});
  HandshakeResponder accepting(key, Medium::tcp, {.address = "10.0.0.1:5"});
  accepting.challenge(dialing.greet(), anyLane);
  CHECK(accepting.dialer() == tagOf("10.0.0.2:6"));
  HandshakeInitiator observer(key, Medium::tcp, 0, {.address = "10.0.0.1:5"});
  HandshakeResponder observed(key, Medium::tcp, {.address = "10.0.0.1:5"});
  observed.challenge(observer.greet(), anyLane);
  CHECK(observed.dialer() == 0);
  CHECK(tagOf("10.0.0.2:6") != tagOf("10.0.0.2:7"));
  CHECK(tagOf("10.0.0.2:6") >> 56 == 0);
}
