#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "backend/faults/plan.h"
#include "test/unit/support/fault_stage.h"

using namespace torchwire::faults;
using Shape = Duration::Shape;

TEST_CASE("phases and actions have the names that Python knows", "[fault_plan]") {
  CHECK(std::string(nameOf(Phase::inFlight)) == "in_flight");
  CHECK(std::string(nameOf(Phase::midTensor)) == "mid_tensor");
  CHECK(std::string(nameOf(Action::duplicate)) == "duplicate");
  CHECK(std::string(nameOf(Action::partition)) == "partition");
}

TEST_CASE("a duration has its shape", "[fault_plan]") {
  CHECK(Duration{Shape::fixed, 2, 0}.at(0.3, 0.7) == 2);
  CHECK(Duration{Shape::uniform, 2, 4}.at(0, 0.7) == 2);
  CHECK(Duration{Shape::uniform, 2, 4}.at(0.5, 0.7) == 3);
  CHECK(Duration{Shape::exponential, 2, 0}.at(0, 0) == 0);
  CHECK(Duration{Shape::exponential, 2, 0}.at(1 - std::exp(-1), 0) == Approx(2));
  CHECK(Duration{Shape::normal, 5, 2}.at(0, 0.3) == 5);
  CHECK(Duration{Shape::normal, 5, 2}.at(1 - std::exp(-0.5), 0) == Approx(7));
}

TEST_CASE("the mean of drawn durations is the one asked for", "[fault_plan]") {
  double normal = 0;
  double exponential = 0;
  constexpr int kSteps = 200;
  for (int i = 0; i < kSteps; ++i) {
    for (int k = 0; k < kSteps; ++k) {
      const double first = (i + 0.5) / kSteps;
      const double second = (k + 0.5) / kSteps;
      normal += Duration{Shape::normal, 5, 1}.at(first, second);
      exponential += Duration{Shape::exponential, 3, 0}.at(first, second);
    }
  }
  CHECK(normal / (kSteps * kSteps) == Approx(5).epsilon(0.01));
  CHECK(exponential / (kSteps * kSteps) == Approx(3).epsilon(0.01));
}

TEST_CASE("a duration is never negative", "[fault_plan]") {
  CHECK(Duration{Shape::normal, 0, 1}.at(0.9, 0.5) == 0);
  CHECK(Duration{Shape::fixed, -1, 0}.at(0, 0) == 0);
  CHECK(Duration{Shape::fixed, std::numeric_limits<double>::quiet_NaN(), 0}.at(0, 0) == 0);
}

TEST_CASE("an action is possible where the table says so", "[fault_plan]") {
  CHECK(isPossible(Action::refuse, Phase::connect));
  CHECK_FALSE(isPossible(Action::refuse, Phase::request));
  CHECK_FALSE(isPossible(Action::drop, Phase::connect));
  for (const Phase phase : {Phase::request, Phase::inFlight, Phase::response}) {
    for (const Action action :
         {Action::drop, Action::fail, Action::delay, Action::duplicate, Action::reorder,
          Action::corrupt, Action::close, Action::pause, Action::kill}) {
      CHECK(isPossible(action, phase));
    }
  }
  for (const Action action : {Action::fail, Action::duplicate, Action::reorder}) {
    CHECK_FALSE(isPossible(action, Phase::midTensor));
  }
  CHECK(isPossible(Action::drop, Phase::midTensor));
}

TEST_CASE("a plan that makes no sense is objected to by the rule's name", "[fault_plan]") {
  CHECK_FALSE(objectionTo(planOf({ruleOf(Action::drop, Phase::request)})));
  const auto objection = objectionTo(planOf({ruleOf(Action::refuse, Phase::response)}));
  REQUIRE(objection);
  CHECK(*objection == "the rule 'refuse': the action refuse is not possible in the phase response");

  Rule rule = ruleOf(Action::delay, Phase::request);
  rule.name = "say \"no\"";
  CHECK(objectionTo(planOf({rule})));
  rule = ruleOf(Action::delay, Phase::request);
  rule.probability = 1.5;
  CHECK(objectionTo(planOf({rule})));
  rule = ruleOf(Action::delay, Phase::request);
  rule.seconds.a = -1;
  CHECK(objectionTo(planOf({rule})));
  rule = ruleOf(Action::delay, Phase::request);
  rule.nth = {0};
  CHECK(objectionTo(planOf({rule})));
}
