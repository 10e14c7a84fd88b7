#include "backend/link/ended_session.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace torchwire;

namespace {

using Texts = std::vector<std::string>;

/// What is undone of the frames in doubt, each by its name.
class Doubts {
 public:
  EndedSession::Doubtful frame(uint64_t session, uint64_t sequence) {
    const std::string name = std::to_string(session) + "." + std::to_string(sequence);
    return {session, sequence, Undo([this, name] { undone_.push_back(name); })};
  }
  Texts undone(const EndedSession::Undone& each) {
    undone_.clear();
    for (const Undo& undo : each) {
      undo();
    }
    return undone_;
  }

 private:
  Texts undone_;
};

/// Of sessions 3 and 4; of the peer's frames nothing has come in 4.
EndedSession twoThatEnded(Doubts& doubts) {
  EndedSession ended;
  ended.replace({3, {7, {}}}, {doubts.frame(3, 1), doubts.frame(3, 2)});
  ended.replace({4, {}}, {doubts.frame(4, 1)});
  return ended;
}

const FormerSession kNone;

} // namespace

TEST_CASE("what is known of a session outlives one in which nothing has come", "[ended_session]") {
  Doubts doubts;
  const EndedSession ended = twoThatEnded(doubts);
  CHECK(ended.former().id == 3);
  CHECK(ended.former().received.through == 7);
}

TEST_CASE("a welcome settles all sessions that are in doubt", "[ended_session]") {
  Doubts doubts;
  EndedSession ended = twoThatEnded(doubts);
  const auto [former, expected] = GENERATE(
      std::pair<FormerSession, Texts>{kNone, {"3.1", "3.2", "4.1"}},
      std::pair<FormerSession, Texts>{{3, {1, {}}}, {"3.2", "4.1"}},
      std::pair<FormerSession, Texts>{{4, {0, {}}}, {"4.1"}}, // which has forgotten the one before
      std::pair<FormerSession, Texts>{{4, {1, {}}}, {}},
      std::pair<FormerSession, Texts>{{5, {}}, {}});
  CHECK(doubts.undone(ended.settleByWelcome(former)) == expected);
  CHECK(ended.settleByFrame().empty());
}

TEST_CASE("a hello settles what it speaks of, a frame behind it the rest", "[ended_session]") {
  Doubts doubts;
  EndedSession ended = twoThatEnded(doubts);
  CHECK(doubts.undone(ended.settleByHello({3, {1, {}}})) == Texts{"3.2"});
  CHECK(ended.awaitsFrame());
  CHECK(doubts.undone(ended.settleByFrame()) == Texts{"4.1"});
  CHECK_FALSE(ended.awaitsFrame());
}

TEST_CASE("a link without a frame leaves in doubt what its hello has not said", "[ended_session]") {
  Doubts doubts;
  EndedSession ended = twoThatEnded(doubts);
  CHECK(ended.settleByHello(kNone).empty());
  ended.replace({5, {}}, {doubts.frame(5, 1)});
  CHECK_FALSE(ended.awaitsFrame()); // of another link
  CHECK(doubts.undone(ended.settleByWelcome({3, {2, {}}})) == Texts{"4.1", "5.1"});
}
