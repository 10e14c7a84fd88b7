// Backward passes over workers in memory. TORCHWIRE_TEST_SEED repeats the run of one seed.
#include <catch2/catch.hpp>
#include <future>

#include "test/unit/support/seeds.h"
#include "test/unit/support/stand_in_program.h"
#include "test/unit/support/stand_in_workers.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

constexpr WorkerId kWorkers = 4;

StandInFunction leaf() {
  StandInFunction function;
  function.leaf = true;
  return function;
}

/// worker 0: loss = 3 * recv(worker 1: 2 * leaf). With an unused result of worker 1, if asked for.
StandInProgram oneHop(bool unused) {
  StandInProgram program(2);
  const size_t parameter = program.part(1).add(leaf());
  StandInFunction twice;
  twice.factor = 2;
  twice.next = {parameter};
  const size_t received = program.send(1, program.part(1).add(twice), 0);
  if (unused) {
    program.send(1, parameter, 0);
  }
  StandInFunction thrice;
  thrice.factor = 3;
  thrice.next = {received};
  program.part(0).roots = {program.part(0).add(thrice)};
  return program;
}

/// A chain from worker 0 through all workers; the function on the last one may raise.
StandInProgram chain(WorkerId workers, bool raises) {
  StandInProgram program(workers);
  size_t function = program.part(workers - 1).add(leaf());
  for (WorkerId worker = workers - 1; worker > 0; --worker) {
    StandInFunction operation;
    operation.next = {function};
    operation.raises = raises && worker == workers - 1;
    function = program.send(worker, program.part(worker).add(operation), worker - 1);
  }
  program.part(0).roots = {function};
  return program;
}

StandInWorkers::Faults faultsOf(unsigned seed) {
  StandInWorkers::Faults faults;
  faults.seed = seed;
  return faults;
}

} // namespace

TEST_CASE("A pass over one hop gives gradients", "[backward]") {
  for (const bool smart : {false, true}) {
    StandInWorkers workers(oneHop(false), {});
    CHECK_FALSE(workers.backward(smart));
    CHECK(workers.gradients() == StandInProgram::Gradients{{{1, 0}, 6}});
    CHECK(workers.gradientRequests() == 1);
    CHECK(workers.ownRequests() == 0); // nothing is asked when every result is used
    CHECK(workers.open() == 0);
  }
}

TEST_CASE("Smart mode does without a result that is not used", "[backward]") {
  StandInWorkers workers(oneHop(true), {});
  CHECK_FALSE(workers.backward(true));
  CHECK(workers.gradients() == StandInProgram::Gradients{{{1, 0}, 6}});
  CHECK(workers.ownRequests() == 2); // discover and resume
  CHECK(workers.open() == 0);
}

TEST_CASE("Fast mode waits for its time-out and says what for", "[backward]") {
  StandInWorkers workers(oneHop(true), {});
  const Error error = workers.backward(false, milliseconds(50));
  REQUIRE(error);
  CHECK_THAT(error.message(), Catch::Contains("worker '1'") && Catch::Contains("Function0"));
  CHECK(workers.open() == 0);

  SECTION("and the next pass is not disturbed") {
    CHECK_FALSE(workers.backward(true));
    CHECK(workers.gradients() == StandInProgram::Gradients{{{1, 0}, 6}});
  }
}

TEST_CASE("Random programs give the gradients of one process", "[backward_random]") {
  for (const unsigned seed : seeds(150)) {
    INFO("seed " << seed);
    const StandInProgram program = StandInProgram::random(seed, kWorkers);
    const auto expected = program.gradients();
    StandInWorkers workers(program, faultsOf(seed));
    const Error error = workers.backward(true);
    INFO(error.message());
    REQUIRE_FALSE(error);
    REQUIRE(workers.gradients() == expected);
    REQUIRE(workers.open() == 0);
    if (program.usesAll()) {
      REQUIRE(workers.ownRequests() == 0);
      REQUIRE_FALSE(workers.backward(false));
    } else {
      REQUIRE_FALSE(workers.backward(true));
    }
    REQUIRE(workers.open() == 0);
  }
}

TEST_CASE("Gradients that come twice count once", "[backward_random]") {
  for (const unsigned seed : seeds(60)) {
    INFO("seed " << seed);
    const StandInProgram program = StandInProgram::random(seed, kWorkers);
    StandInWorkers::Faults faults = faultsOf(seed);
    faults.duplicate = 0.5;
    StandInWorkers workers(program, faults);
    const Error error = workers.backward(true);
    INFO(error.message());
    REQUIRE_FALSE(error);
    REQUIRE(workers.gradients() == program.gradients());
  }
}

TEST_CASE("A function that raises ends the pass on all workers", "[backward_failure]") {
  for (const unsigned seed : seeds(30)) {
    INFO("seed " << seed);
    StandInWorkers workers(chain(kWorkers, true), faultsOf(seed));
    const Error error = workers.backward(true);
    REQUIRE(error);
    REQUIRE_THAT(error.message(), Catch::Contains("raised"));
    REQUIRE(workers.open() == 0);
  }
}

TEST_CASE("A failure somewhere in a random program leaves nothing open", "[backward_failure]") {
  for (const unsigned seed : seeds(100)) {
    INFO("seed " << seed);
    StandInProgram program = StandInProgram::random(seed, kWorkers);
    for (StandInPart& part : program.parts) {
      part.functions[part.functions.size() / 2].raises = true;
    }
    StandInWorkers workers(program, faultsOf(seed));
    (void)workers.backward(true); // the functions that raise may be out of reach
    REQUIRE(workers.open() == 0);
    (void)workers.backward(seed % 2 == 0, milliseconds(20));
    REQUIRE(workers.open() == 0);
  }
}

TEST_CASE("A worker that is gone fails the pass if the roots reach it", "[backward_failure]") {
  StandInWorkers workers(chain(kWorkers, false), {});
  workers.kill(kWorkers - 1);
  const Error error = workers.backward(true);
  REQUIRE(error);
  CHECK_THAT(error.message(), Catch::Contains("worker 3 is dead"));
  CHECK(workers.open() == 0);
}

TEST_CASE(
    "A worker that is gone does not matter if the roots do not reach it", "[backward_failure]") {
  StandInProgram program = oneHop(false);
  program.parts.emplace_back();
  const size_t parameter = program.part(2).add(leaf());
  program.send(2, parameter, 1); // never used
  program.send(1, 0, 2);
  StandInWorkers workers(program, {});
  workers.kill(2);
  CHECK_FALSE(workers.backward(true));
  CHECK(workers.gradients() == StandInProgram::Gradients{{{1, 0}, 6}});
}

TEST_CASE("A context has one pass at a time", "[backward]") {
  StandInWorkers workers(oneHop(true), {});
  std::promise<Error> over;
  workers.start(0, false, milliseconds(0), [&](const Error& error) { over.set_value(error); });
  CHECK_THROWS_WITH(
      workers.start(0, true, milliseconds(0), [](const Error&) {}),
      Catch::Contains("runs already") && Catch::Contains("worker '0'"));

  SECTION("and ends it when it is released") {
    workers.table(0).forget(StandInWorkers::kContext, "the context was released");
    CHECK_THAT(over.get_future().get().message(), Catch::Contains("released"));
    workers.table(1).forget(StandInWorkers::kContext, "the context was released");
    CHECK(workers.open() == 0);
  }
}

TEST_CASE("A pass waits for functions on other threads", "[backward]") {
  StandInWorkers workers(oneHop(false), {});
  StandInGraph* graph = nullptr;
  std::promise<Error> over;
  auto result = over.get_future();
  workers.start(
      0, true, milliseconds(0), [&](const Error& error) { over.set_value(error); },
      [&](StandInGraph& opened) {
        graph = &opened;
        ++opened.devices();
      });
  CHECK(result.wait_for(milliseconds(20)) == std::future_status::timeout);
  --graph->devices();
  CHECK_FALSE(result.get());
}

TEST_CASE("A pass that is ended before it runs says so", "[backward]") {
  StandInWorkers workers(oneHop(false), {});
  std::promise<Error> over;
  workers.start(
      0, true, milliseconds(0), [&](const Error& error) { over.set_value(error); },
      [&](StandInGraph&) {
        workers.table(0).forget(StandInWorkers::kContext, "the context was released");
      });
  CHECK_THAT(over.get_future().get().message(), Catch::Contains("released"));
  CHECK(workers.open() == 0);
}

TEST_CASE("No pass begins on a worker that has shut down", "[backward]") {
  StandInWorkers workers(oneHop(false), {});
  workers.table(0).forgetAll("worker '0' shut down");
  CHECK_THROWS_WITH(
      workers.start(0, true, milliseconds(0), [](const Error&) {}), Catch::Contains("shut down"));
}

TEST_CASE("A root that is lost leaves its context to others", "[backward_failure]") {
  StandInWorkers workers(oneHop(true), {});
  workers.start(0, false, milliseconds(0), [](const Error&) {});
  while (!workers.table(1).running(StandInWorkers::kContext)) {
    std::this_thread::yield();
  }
  workers.table(1).rootLost(0);
  CHECK_FALSE(workers.table(1).running(StandInWorkers::kContext));
  workers.table(0).forgetAll("the end of the test");
}

TEST_CASE("Gradients of an older pass do not disturb a newer one", "[backward]") {
  StandInWorkers workers(oneHop(true), {});
  workers.start(0, false, milliseconds(0), [](const Error&) {});
  std::shared_ptr<Pass> newer;
  while (!newer) {
    newer = workers.table(1).running(StandInWorkers::kContext);
  }
  GradientsHead old{newer->id(), newer->options(), 101};
  --old.pass.number;
  std::promise<Error> answer;
  workers.table(1).gradients(
      old, [] {}, [&](const Error& error, const Report&) { answer.set_value(error); });
  CHECK(answer.get_future().get());
  CHECK(workers.table(1).running(StandInWorkers::kContext) == newer);
  workers.table(0).forgetAll("the end of the test");
  workers.table(1).forgetAll("the end of the test");
}
