// Faults in mid-tensor, up to the channel.
#include <catch2/catch.hpp>
#include <deque>

#include "backend/faults/faulty_link.h"
#include "backend/link/loopback_link.h"
#include "test/unit/support/fault_stage.h"

using namespace torchwire;
using namespace torchwire::faults;
using Texts = std::vector<std::string>;

namespace {

constexpr double kMeanwhile = 0.5; // what does not wait is over by then, also on a busy machine
constexpr double kLong = 1000;

// A link whose tensors go through a channel: in halves, between which a fault may be injected. Thread-safe.
class ChannelLink final : public Link {
 public:
  explicit ChannelLink(std::shared_ptr<MidTensor> faults) : faults_(std::move(faults)) {}

  void send(OutgoingFrame frame, Sent sent) override EXCLUDES(mutex_) {
    uint64_t id = 0;
    bool closed = false;
    {
      MutexLock lock(mutex_);
      id = next_++;
      closed = closed_;
      if (!closed) {
        pending_.emplace(id, std::move(sent));
      }
    }
    if (closed) {
      sent(Error(ErrorCode::linkBroken, "closed"));
      return;
    }
    const auto inject = frame.tensors.empty() ? nullptr : faults_->take(frame.tensors.back().data);
    const auto goOn = [this, id, text = textOf(loopBack(frame))] { finish(id, text); };
    if (inject) {
      note("half of " + textOf(loopBack(frame)));
      inject(goOn);
    } else {
      goOn();
    }
  }
  void receive(Received) override {}
  void close() override EXCLUDES(mutex_) {
    std::map<uint64_t, Sent> pending;
    {
      MutexLock lock(mutex_);
      closed_ = true;
      pending.swap(pending_);
    }
    for (const auto& [id, sent] : pending) {
      sent(Error(ErrorCode::linkBroken, "closed"));
    }
  }
  Texts events() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return events_;
  }
  void note(const std::string& event) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    events_.push_back(event);
  }

 private:
  void finish(uint64_t id, const std::string& text) EXCLUDES(mutex_) {
    Sent sent;
    {
      MutexLock lock(mutex_);
      const auto it = pending_.find(id);
      if (it == pending_.end()) {
        return;
      }
      sent = std::move(it->second);
      pending_.erase(it);
      events_.push_back(text);
    }
    sent(Error());
  }

  const std::shared_ptr<MidTensor> faults_;
  mutable Mutex mutex_{LockRank::test};
  bool closed_ GUARDED_BY(mutex_) = false;
  uint64_t next_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Sent> pending_ GUARDED_BY(mutex_);
  Texts events_ GUARDED_BY(mutex_);
};

const std::string kTensor(1000, 't');

OutgoingFrame tensorFrame(const std::string& text) {
  OutgoingFrame frame = callFrame(FrameKind::request, kCall, 1, text);
  frame.tensors = {{kTensor.data(), kTensor.size()}};
  return frame;
}

struct ChannelStage {
  explicit ChannelStage(const Plan& plan)
      : worker("a", plan),
        channel(std::make_shared<ChannelLink>(worker.injector->midTensor())),
        link(FaultyLink::wrap(channel, worker.injector, timer, "b")) {}
  ~ChannelStage() {
    timer.stop();
    link->close();
  }

  CallbackNote& send(OutgoingFrame frame) {
    CallbackNote& note = ledger.note("send");
    link->send(std::move(frame), CallbackLedger::expect(note));
    return note;
  }

  CallbackLedger ledger;
  Timer timer;
  const FaultyWorker worker;
  const std::shared_ptr<ChannelLink> channel;
  const std::shared_ptr<Link> link;
};

Plan once(Action action, double seconds = 0) {
  Rule rule = ruleOf(action, Phase::midTensor);
  rule.nth = {1};
  rule.seconds.a = seconds;
  return planOf({rule});
}

} // namespace

TEST_CASE("only frames with tensors count in mid-tensor", "[faulty_tensor]") {
  ChannelStage stage(once(Action::drop));
  stage.send(callFrame(FrameKind::request, kCall, 1, "plain"));
  stage.send(tensorFrame("first"));
  stage.send(tensorFrame("second"));
  CHECK(stage.channel->events() == Texts{"plain", "half of first", "second"});
  const auto log = stage.worker.log->entries();
  REQUIRE(log.size() == 1);
  CHECK(log[0].phase == Phase::midTensor);
  CHECK(log[0].occurrence == 1);
}

TEST_CASE("the rest of a tensor that is dropped never goes", "[faulty_tensor]") {
  ChannelStage stage(once(Action::drop));
  const CallbackNote& note = stage.send(tensorFrame("1"));
  CHECK_FALSE(note.called());
  stage.link->close();
  CHECK(note.error());
}

TEST_CASE("a link that a dropped tensor blocks breaks when the plan ends", "[faulty_tensor]") {
  ChannelStage stage(once(Action::drop));
  const CallbackNote& note = stage.send(tensorFrame("1"));
  stage.worker.injector->setPlan(Plan());
  CHECK(
      note.error().message() == "the link was broken on purpose, by rule 'drop' of the fault plan");
}

TEST_CASE("the rest of a tensor that is delayed goes later", "[faulty_tensor]") {
  ChannelStage stage(once(Action::delay, kMeanwhile));
  const CallbackNote& note = stage.send(tensorFrame("1"));
  CHECK_FALSE(note.called());
  REQUIRE(stage.ledger.waitForAll());
  CHECK(note.succeeded());
  CHECK(stage.channel->events() == Texts{"half of 1", "1"});
}

TEST_CASE("the rest of a delayed tensor goes when the timer stops", "[faulty_tensor]") {
  ChannelStage stage(once(Action::delay, kLong));
  const CallbackNote& note = stage.send(tensorFrame("1"));
  stage.timer.stop();
  CHECK(note.succeeded());
}

TEST_CASE("a link may break in mid-tensor", "[faulty_tensor]") {
  ChannelStage stage(once(Action::close));
  const CallbackNote& note = stage.send(tensorFrame("1"));
  CHECK(
      note.error().message() ==
      "the link was broken on purpose, by rule 'close' of the fault plan");
  CHECK(stage.channel->events() == Texts{"half of 1"});
  CHECK(stage.send(tensorFrame("2")).error());
}

TEST_CASE("a process may stand still or end in mid-tensor", "[faulty_tensor]") {
  Plan plan = once(Action::pause, 1.5);
  plan.rules.push_back(ruleOf(Action::kill, Phase::midTensor));
  ChannelStage stage(plan);
  stage.send(tensorFrame("1"));
  stage.send(tensorFrame("2"));
  CHECK(stage.channel->events() == Texts{"half of 1", "1", "half of 2", "2"});
  CHECK(stage.worker.process->deeds() == Texts{"pause 1.5", "kill"});
}

TEST_CASE("a tensor is corrupted in a copy", "[faulty_tensor]") {
  for (const StageKind kind : kStageKinds) {
    CAPTURE(nameOf(kind));
    Rule rule = ruleOf(Action::corrupt, Phase::midTensor);
    rule.byte = 1007;
    FaultStage stage(kind, planOf({rule}), false);
    stage.send(tensorFrame("1"));
    REQUIRE(stage.until([&] { return stage.served() == Texts{"1"}; }));
    CHECK(kTensor == std::string(1000, 't'));
    const Blob tensor = stage.arrived().back().tensors.at(0);
    const std::string bytes(static_cast<const char*>(tensor.data.get()), tensor.length);
    std::string expected = kTensor;
    expected[7] = static_cast<char>('t' ^ 0xff);
    CHECK(bytes == expected);
  }
}

TEST_CASE("a fault that no channel has taken is withdrawn with the frame", "[faulty_tensor]") {
  FaultStage stage(StageKind::pumped, once(Action::drop), false);
  stage.send(tensorFrame("1"));
  REQUIRE(stage.until([&] { return stage.served() == Texts{"1"}; }));
  CHECK_FALSE(stage.a.injector->midTensor()->take(kTensor.data()));
  CHECK(stage.logged().empty()); // it did not take place
}

TEST_CASE("a response's tensor has the type and the workers of its call", "[faulty_tensor]") {
  Rule rule = ruleOf(Action::corrupt, Phase::midTensor);
  rule.from = {"a"};
  rule.messages = {kCall};
  FaultStage stage(StageKind::pumped, planOf({rule}), false);
  stage.call("1");
  REQUIRE(stage.until([&] { return stage.served().size() == 1; }));
  OutgoingFrame response = callFrame(FrameKind::response, kAnswer, 1, "re 1");
  response.tensors = {{kTensor.data(), kTensor.size()}};
  stage.callee->send(std::move(response), stage.world.ledger.expect("response"));
  const auto log = stage.b.log->entries();
  REQUIRE(log.size() == 1);
  CHECK(log[0].worker == "b");
  CHECK(log[0].from == "a");
  CHECK(log[0].to == "b");
  CHECK(log[0].message == kCall);
}

// ---- the link to itself -------------------------------------------------------------------------

TEST_CASE("on the link to itself the whole frame waits, and all behind it", "[faulty_tensor]") {
  FaultStage stage(StageKind::self, once(Action::delay, kMeanwhile), false);
  const CallbackNote& first = stage.send(tensorFrame("1"));
  const CallbackNote& second = stage.call("2");
  CHECK_FALSE(first.called());
  CHECK_FALSE(second.called());
  REQUIRE(stage.until([&] { return stage.served().size() == 2; }));
  CHECK(stage.served() == Texts{"1", "2"});
}

TEST_CASE("on the link to itself nothing passes a tensor that got lost", "[faulty_tensor]") {
  FaultStage stage(StageKind::self, once(Action::drop), false);
  const CallbackNote& first = stage.send(tensorFrame("1"));
  const CallbackNote& second = stage.call("2");
  CHECK(stage.settled([&] { return stage.served().empty(); }));
  stage.caller->close();
  CHECK(first.error());
  CHECK(second.error());
}

TEST_CASE("the link to itself goes on when it broke in mid-tensor", "[faulty_tensor]") {
  FaultStage stage(StageKind::self, once(Action::close), false);
  CHECK(stage.send(tensorFrame("1")).error());
  CHECK(stage.send(tensorFrame("2")).succeeded());
  CHECK(stage.served() == Texts{"2"});
}

TEST_CASE("a process may stand still in the middle of a tensor to itself", "[faulty_tensor]") {
  FaultStage stage(StageKind::self, once(Action::pause, 1), false);
  stage.send(tensorFrame("1"));
  stage.send(tensorFrame("2"));
  CHECK(stage.served() == Texts{"1", "2"});
  CHECK(stage.a.process->deeds() == Texts{"pause 1"});
}
