// A handshake between two sides of a group, or of two, and what may happen to its messages on their way.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "backend/transport/authentication.h"

namespace torchwire {

inline constexpr uint64_t kTestGroup = 42;
inline constexpr uint8_t kTestLane = 3;
inline const std::string kTestAddress = "10.0.0.1:4711";
inline const std::string kTestSecret = "0123456789abcdef";

using HandshakeChange = std::function<void(HandshakeBytes&)>;

/// What becomes of the messages on their way.
struct HandshakeChanges {
  HandshakeChange greeting = {}, challenge = {}, proof = {}, authResult = {};
};

/// One handshake: who takes part, what was said, and what each side made of it.
struct ObservedHandshake {
  void run(const HandshakeChanges& changes = {}) {
    const auto onTheWay = [](HandshakeBytes message, const HandshakeChange& change) {
      if (change) {
        change(message);
      }
      return message;
    };
    HandshakeInitiator initiator(initiatorsKey, initiatorsMedium, lane, initiatorsTerms);
    HandshakeResponder responder(respondersKey, respondersMedium, respondersTerms);
    greeting = onTheWay(initiator.greet(), changes.greeting);
    const HandshakeResponder::Reply reply =
        responder.challenge(greeting, [this](uint8_t asked) { return asked == openLane; });
    respondersAnswer = reply.answer;
    challenge = onTheWay(reply.send, changes.challenge);
    const HandshakeInitiator::Step step = initiator.answerChallenge(challenge);
    initiatorsRefusal = step.refusal;
    // As Connector and Acceptor do it: who refuses says no more.
    if (!step.refusal.empty() || reply.answer != Answer::welcome) {
      return;
    }
    proof = onTheWay(step.send, changes.proof);
    respondersAnswer = responder.check(proof);
    authResult = onTheWay(responder.authResult(respondersAnswer), changes.authResult);
    initiatorsRefusal = initiator.judge(authResult).value_or("");
    admittedLane = responder.lane();
    initiatorSealedBy = initiator.sealedBy();
    responderSealedBy = responder.sealedBy();
  }

  bool responderAdmits() const {
    return admittedLane >= 0 && respondersAnswer == Answer::welcome;
  }
  bool initiatorAgrees() const {
    return admittedLane >= 0 && initiatorsRefusal.empty();
  }

  GroupKey initiatorsKey{kTestGroup, kTestSecret};
  GroupKey respondersKey{kTestGroup, kTestSecret};
  Medium initiatorsMedium = Medium::tcp, respondersMedium = Medium::tcp;
  uint8_t lane = kTestLane, openLane = kTestLane;
  HandshakeTerms initiatorsTerms{kTestAddress}, respondersTerms{kTestAddress};

  HandshakeBytes greeting, challenge, proof, authResult;
  Answer respondersAnswer = Answer::notUnderstood; // the last
  std::string initiatorsRefusal;
  std::optional<SealedBy> initiatorSealedBy, responderSealedBy;
  int admittedLane = -1; // the responder's; -1: it did not come so far
};

} // namespace torchwire
