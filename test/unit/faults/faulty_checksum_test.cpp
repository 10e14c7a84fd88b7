// Faults below checksums, as FAULTY_TORCHWIRE has them: what a fault makes up arrives, what it damages is found.
#include <catch2/catch.hpp>
#include <optional>

#include "backend/link/checksum_interceptor.h"
#include "backend/wire/handshake.h"
#include "test/unit/support/fault_stage.h"

using namespace torchwire;
using namespace torchwire::faults;
using Catch::Contains;
using Texts = std::vector<std::string>;

namespace {

WorkerRecord recordNamed(const std::string& name) {
  WorkerRecord record = recordOf(0);
  record.name = name;
  record.address = "memory://" + name;
  return record;
}

// The worker "a" calls "b" on a link with both interceptors; b answers with "re " and the text.
class CheckedStage {
 public:
  explicit CheckedStage(const Plan& plan)
      : a_("a", plan), b_("b", plan), contextOfA_(contextOf(a_)), contextOfB_(contextOf(b_)) {
    contextOfB_->listen([this](std::shared_ptr<Link> link) { callee_ = std::move(link); });
    caller_ = contextOfA_->dial(recordNamed("b"));
    Hello hello;
    hello.self = recordNamed("a");
    caller_->send(hello.encode(FrameKind::hello), world_.ledger.expect("hello"));
    REQUIRE(until([this] { return callee_ != nullptr; }));
    atCaller_.emplace(world_.ledger.notifier(), caller_);
    atCallee_.emplace(
        world_.ledger.notifier(), callee_, [this](Link& link, const Ear::Heard& heard) {
          const uint64_t id = heard.header.callId;
          link.send(
              callFrame(FrameKind::response, kAnswer, id, "re " + heard.text),
              world_.ledger.expect("answer"));
        });
    REQUIRE(until([this] { return atCallee_->all().size() == 1; })); // the hello
  }
  ~CheckedStage() {
    world_.timer.stop();
    contextOfA_->join();
    contextOfB_->join();
  }
  CheckedStage(const CheckedStage&) = delete;
  CheckedStage& operator=(const CheckedStage&) = delete;

  void call(uint64_t id, const std::string& text) {
    caller_->send(callFrame(FrameKind::request, kCall, id, text), world_.ledger.expect("call"));
  }
  Texts answers() const {
    return atCaller_->texts(FrameKind::response);
  }
  Error endAtCaller() const {
    return atCaller_->error();
  }
  Error endAtCallee() const {
    return atCallee_->error();
  }
  template <typename Condition>
  bool until(Condition holds) {
    return world_.network.deliverUntil(holds);
  }

 private:
  std::unique_ptr<LinkContext> contextOf(const FaultyWorker& worker) {
    LinkContext& memory = world_.network.context("memory://" + worker.injector->self());
    auto faulty = std::make_unique<FaultyContext>(
        std::make_unique<BorrowedContext>(memory), worker.injector, world_.timer);
    return ChecksumInterceptor().wrap(std::move(faulty), world_.timer);
  }

  World world_;
  FaultyWorker a_, b_;
  std::unique_ptr<LinkContext> contextOfA_, contextOfB_;
  std::shared_ptr<Link> caller_, callee_;
  std::optional<Ear> atCaller_, atCallee_;
};

Plan once(Action action, Phase phase) {
  Rule rule = ruleOf(action, phase);
  rule.nth = {1};
  return planOf({rule});
}

} // namespace

TEST_CASE("a response that a fault makes up passes for one with a checksum", "[faulty_checksum]") {
  const Phase phase = GENERATE(Phase::inFlight, Phase::response);
  CAPTURE(nameOf(phase));
  CheckedStage stage(once(Action::fail, phase));
  stage.call(1, "1");
  stage.call(2, "2");
  REQUIRE(
      stage.until([&] { return stage.answers().size() == (phase == Phase::inFlight ? 3 : 2); }));
  CHECK_THAT(stage.answers().front(), Contains("! RPCErr:2:") && Contains("'fail'"));
  CHECK(stage.answers().back() == "re 2");
  CHECK_FALSE(stage.endAtCaller());
}

TEST_CASE("what a fault damages is found by the checksum", "[faulty_checksum]") {
  const Phase phase = GENERATE(Phase::request, Phase::inFlight, Phase::response);
  CAPTURE(nameOf(phase));
  CheckedStage stage(once(Action::corrupt, phase));
  const auto end = [&] {
    return phase == Phase::response ? stage.endAtCaller() : stage.endAtCallee();
  };
  stage.call(1, "1");
  REQUIRE(stage.until([&] { return bool(end()); }));
  CHECK_THAT(end().message(), Contains("a frame arrived damaged"));
  CHECK(stage.answers().empty());
}
