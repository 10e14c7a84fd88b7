// A caller and a callee with a fault plan, on links of each kind.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/faults/faulty_context.h"
#include "backend/faults/faulty_link.h"
#include "backend/faults/injector.h"
#include "test/unit/support/memory_worker.h"

namespace torchwire::faults {

constexpr uint32_t kCall = 0x102; // type of requests that say nothing else
constexpr uint32_t kAnswer = 0x203;
constexpr uint32_t kException = 0x237;

/// A request or response with its body in the head.
OutgoingFrame callFrame(FrameKind kind, uint32_t type, uint64_t callId, const std::string& text);

/// A rule that applies to whatever comes; to be changed.
Rule ruleOf(Action action, Phase phase);
Plan planOf(std::vector<Rule> rules, uint64_t seed = 1);

/// Notes what would have happened. Thread-safe.
class FakeProcess final : public Process {
 public:
  void pause(double seconds) override EXCLUDES(mutex_);
  void kill() override EXCLUDES(mutex_);
  std::vector<std::string> deeds() const EXCLUDES(mutex_); // "pause 1.5", "kill"

 private:
  mutable Mutex mutex_{LockRank::test};
  std::vector<std::string> deeds_ GUARDED_BY(mutex_);
};

/// Makes someone else's context its own. Thread-safe.
class BorrowedContext final : public LinkContext {
 public:
  explicit BorrowedContext(LinkContext& inner) : inner_(inner) {}
  std::string listen(Accepted accepted) override {
    return inner_.listen(std::move(accepted));
  }
  std::shared_ptr<Link> dial(const WorkerRecord& peer) override {
    return inner_.dial(peer);
  }
  std::vector<char> offer() const override {
    return inner_.offer();
  }
  LinkDescription describe(const std::vector<char>& peersOffer) const override {
    return inner_.describe(peersOffer);
  }
  void join() override {
    inner_.join();
  }

 private:
  LinkContext& inner_;
};

/// What decides for one worker. Thread-safe.
struct FaultyWorker {
  FaultyWorker(std::string name, const Plan& plan)
      : injector(std::make_shared<Injector>(std::move(name), plan, log, process)) {}

  const std::shared_ptr<FaultLog> log = std::make_shared<FaultLog>("");
  const std::shared_ptr<FakeProcess> process = std::make_shared<FakeProcess>();
  const std::shared_ptr<Injector> injector;
};

/// Receives all that comes on a link. Thread-safe.
class Ear {
 public:
  struct Heard {
    FrameHeader header;
    std::string text;
    IncomingFrame frame;
  };
  using OnRequest = std::function<void(Link&, const Heard&)>;

  Ear(Notifier& notifier, std::shared_ptr<Link> link, OnRequest onRequest = nullptr);

  std::vector<std::string> texts(FrameKind kind) const;
  std::vector<Heard> all() const;
  Error error() const;

 private:
  struct State;
  static void listen(const std::shared_ptr<State>& state, const std::shared_ptr<Link>& link);

  std::shared_ptr<State> state_;
};

enum class StageKind { pumped, synchronous, threaded, self };
const char* nameOf(StageKind kind);
/// For tests that loop over all of them.
constexpr StageKind kStageKinds[] = {
    StageKind::pumped, StageKind::synchronous, StageKind::threaded, StageKind::self};

/// The worker "a" calls "b", or itself; both have the plan. What arrives is answered at once, with "re " and its
/// text, unless `answering` is off.
class FaultStage {
 public:
  FaultStage(StageKind kind, const Plan& plan, bool answering = true);
  ~FaultStage();
  FaultStage(const FaultStage&) = delete;
  FaultStage& operator=(const FaultStage&) = delete;

  /// Sends the request; the note tells how that went. Call ids count from 1.
  CallbackNote& call(const std::string& text, uint32_t type = kCall);
  CallbackNote& send(OutgoingFrame frame);
  CallbackNote& answer(uint64_t callId, const std::string& text);

  /// Texts of requests that arrived, and of responses: "re x", or "! x" for an exception.
  std::vector<std::string> served() const;
  std::vector<std::string> answers() const;
  /// The requests as they arrived.
  std::vector<IncomingFrame> arrived() const;
  /// Of both workers: "drop request 1".
  std::vector<std::string> logged() const;

  template <typename Condition>
  bool until(Condition holds) {
    return world.network.deliverUntil(holds);
  }
  /// Lets happen what can; true if the condition holds all the while.
  bool settled(const std::function<bool()>& holds);
  /// Waits for an entry in a log, which notifies nobody.
  bool untilLogged(const std::vector<std::string>& expected);
  void setPlan(const Plan& plan);

  bool isSelf() const {
    return kind_ == StageKind::self;
  }

  Error endAtCaller() const {
    return (isSelf() ? calleeEar_ : callerEar_)->error();
  }
  Error endAtCallee() const {
    return calleeEar_->error();
  }
  const FaultyWorker& decidingCallee() const {
    return isSelf() ? a : b;
  }

 private:
  const StageKind kind_;

 public:
  World world;
  FaultyWorker a, b; // on the link of a worker to itself, b does nothing

 private:
  std::shared_ptr<Link> connect();

  std::unique_ptr<FaultyContext> contextA_, contextB_;
  std::shared_ptr<Link> accepted_;

 public:
  const std::shared_ptr<Link> caller, callee; // the same, if it is self

 private:
  std::unique_ptr<Ear> callerEar_, calleeEar_;
  uint64_t calls_ = 0;
};

} // namespace torchwire::faults
