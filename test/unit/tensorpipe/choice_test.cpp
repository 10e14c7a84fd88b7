// Which transport a link uses, and why not another: with probes that a test makes.
#include "backend/tensorpipe/choice.h"

#include <catch2/catch.hpp>

#include <map>

using namespace torchwire;

namespace {

const std::vector<Candidate> kBoth = {{"shared", std::nullopt}, {"network", std::nullopt}};

/// One that reaches where `objections` has nothing against it. Counts how often it is asked.
struct StagedReach {
  std::map<std::string, Objection> objections;
  std::vector<std::string> asked;

  Choice choose(const std::vector<Candidate>& candidates, const Offered& peers) {
    return torchwire::choose(
        candidates, peers,
        [this](const std::string& name, const std::string& descriptor) {
          asked.push_back(name + "=" + descriptor);
          const auto found = objections.find(name);
          return found == objections.end() ? std::nullopt : std::optional(found->second);
        },
        "_transports");
  }
};

const Offered kOffersBoth = {{{"network", "anywhere"}, {"shared", "host a"}}, {}};

} // namespace

TEST_CASE("the best that both have is taken, and nothing after it is asked", "[choice]") {
  StagedReach reach;
  const Choice choice = reach.choose(kBoth, kOffersBoth);
  CHECK(choice.name == "shared");
  CHECK(choice.notTaken.empty());
  CHECK(reach.asked == std::vector<std::string>{"shared=host a"});
}

TEST_CASE("one that does not reach the peer is told with its reason and remedy", "[choice]") {
  StagedReach reach;
  reach.objections["shared"] = {"on another host", "move it"};
  const Choice choice = reach.choose(kBoth, kOffersBoth);
  CHECK(choice.name == "network");
  REQUIRE(choice.notTaken.size() == 1);
  CHECK(choice.notTaken[0].name == "shared");
  CHECK(choice.notTaken[0].reason == "on another host");
  CHECK(choice.notTaken[0].remedy == "move it");
}

TEST_CASE("what does not work here is not asked whether it reaches the peer", "[choice]") {
  StagedReach reach;
  const Choice choice = reach.choose(
      {{"shared", Objection{"no memfd", "permit it"}}, {"network", std::nullopt}}, kOffersBoth);
  CHECK(choice.name == "network");
  CHECK(reach.asked == std::vector<std::string>{"network=anywhere"});
  REQUIRE(choice.notTaken.size() == 1);
  CHECK(choice.notTaken[0].reason == "no memfd");
  CHECK(choice.notTaken[0].remedy == "permit it");
}

TEST_CASE("what the peer does not have is told by what the peer says of it", "[choice]") {
  StagedReach reach;
  Offered peers = {{{"network", "anywhere"}}, {}};
  SECTION("it has not been told to use it") {
    const Choice choice = reach.choose(kBoth, peers);
    CHECK(choice.name == "network");
    REQUIRE(choice.notTaken.size() == 1);
    CHECK(choice.notTaken[0].reason == "the other worker's options leave it out");
    CHECK(choice.notTaken[0].remedy == "give both workers the same _transports, or none");
  }
  SECTION("it has tried it") {
    peers.leftOut = {{"shared", "no memfd", "permit it"}};
    const Choice choice = reach.choose(kBoth, peers);
    REQUIRE(choice.notTaken.size() == 1);
    CHECK(choice.notTaken[0].reason == "it does not work for the other worker: no memfd");
    CHECK(choice.notTaken[0].remedy == "permit it");
  }
}

TEST_CASE("where nothing is left, all are told", "[choice]") {
  StagedReach reach;
  reach.objections["shared"] = {"apart", ""};
  const Choice choice = reach.choose(kBoth, {{{"shared", "host b"}}, {}});
  CHECK(choice.name == "none");
  REQUIRE(choice.notTaken.size() == 2);
  CHECK(choice.notTaken[0].name == "shared");
  CHECK(choice.notTaken[1].name == "network");
}
