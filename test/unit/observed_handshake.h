// A handshake between two sides of a group, or of two, and what may happen to its messages on their way.
#pragma once

#include <functional>
#include <string>

#include "backend/transport/admission.h"

namespace torchwire {

inline constexpr uint64_t kTestGroup = 42;
inline constexpr uint8_t kTestLane = 3;
inline const std::string kTestSecret = "0123456789abcdef";

using HandshakeChange = std::function<void(HandshakeBytes&)>;

/// What becomes of the messages on their way.
struct HandshakeChanges {
  HandshakeChange greeting = {}, challenge = {}, proof = {}, verdict = {};
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
    Applicant applicant(diallersKey, diallersMedium, lane);
    Porter porter(portersKey, portersMedium);
    greeting = onTheWay(applicant.greet(), changes.greeting);
    const Porter::Reply reply =
        porter.challenge(greeting, [this](uint8_t asked) { return asked == openLane; });
    portersAnswer = reply.answer;
    challenge = onTheWay(reply.send, changes.challenge);
    const Applicant::Step step = applicant.answerChallenge(challenge);
    diallersRefusal = step.refusal;
    // As Dialler and Door do it: who refuses says no more.
    if (!step.refusal.empty() || reply.answer != Answer::welcome) {
      return;
    }
    proof = onTheWay(step.send, changes.proof);
    portersAnswer = porter.check(proof) ? Answer::welcome : Answer::wrongProof;
    verdict = onTheWay(porter.verdict(portersAnswer), changes.verdict);
    diallersRefusal = applicant.judge(verdict).value_or("");
    admittedLane = porter.lane();
  }

  bool porterAdmits() const {
    return admittedLane >= 0 && portersAnswer == Answer::welcome;
  }
  bool diallerAgrees() const {
    return admittedLane >= 0 && diallersRefusal.empty();
  }

  GroupKey diallersKey{kTestGroup, kTestSecret};
  GroupKey portersKey{kTestGroup, kTestSecret};
  Medium diallersMedium = Medium::tcp, portersMedium = Medium::tcp;
  uint8_t lane = kTestLane, openLane = kTestLane;

  HandshakeBytes greeting, challenge, proof, verdict;
  Answer portersAnswer = Answer::notUnderstood; // the last
  std::string diallersRefusal;
  int admittedLane = -1; // the porter's; -1: it did not come so far
};

} // namespace torchwire
