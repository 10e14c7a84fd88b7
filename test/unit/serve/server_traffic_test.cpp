// Many requests at a time, whose answers come in any order.

#include "backend/serve/server.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <condition_variable>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/serve/response.h"
#include "test/unit/serve/sample_requests.h"
#include "test/unit/support/seeds.h"
#include "test/unit/support/serving_worker.h"

namespace rpc = torch::distributed::rpc;
using namespace torchwire;

namespace {

constexpr WorkerId kCallers = 4;
constexpr uint64_t kCallsEach = 150;

/// What becomes of a call, which its number decides.
enum class Fate : unsigned { returns, throws, answeredLater, failsLater };
Fate fateOf(uint64_t callId) {
  return static_cast<Fate>(callId % 4);
}

std::string answerTo(WorkerId caller, int64_t callId) {
  return "answer to " + std::to_string(callId) + " of " + std::to_string(caller);
}

/// Calls whose handlers have returned. Any thread may end one, picked at random. Thread-safe.
class OpenCalls {
 public:
  struct Call {
    c10::intrusive_ptr<rpc::JitFuture> response;
    WorkerId caller;
    uint64_t id;
  };

  void add(Call call) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_one();
  }

  /// Ends one call after the other until there will be none.
  void endAll(unsigned seed) EXCLUDES(mutex_) {
    std::mt19937 random(seed);
    Call call;
    while (take(random, call)) {
      const std::string answer = answerTo(call.caller, static_cast<int64_t>(call.id));
      if (fateOf(call.id) == Fate::failsLater) {
        call.response->setError(std::make_exception_ptr(std::runtime_error(answer)));
      } else {
        complete(*call.response, messageOf(answer, kOwnResponse));
      }
    }
  }

  /// No more will come.
  void close() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  bool take(std::mt19937& random, Call& call) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    changed_.wait(lock, [&]() REQUIRES(mutex_) { return closed_ || !calls_.empty(); });
    if (calls_.empty()) {
      return false;
    }
    std::swap(calls_[random() % calls_.size()], calls_.back());
    call = std::move(calls_.back());
    calls_.pop_back();
    return true;
  }

  Mutex mutex_{LockRank::test};
  std::condition_variable_any changed_;
  std::vector<Call> calls_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

/// Serves by the calls' fates.
void serveBy(Dispatcher& dispatcher, OpenCalls& open) {
  dispatcher.handleOwn(kOwnRequest, [&](WorkerId caller, rpc::Message& request) {
    const auto id = static_cast<uint64_t>(request.id());
    if (fateOf(id) == Fate::returns) {
      return completed(messageOf(answerTo(caller, request.id()), kOwnResponse));
    }
    if (fateOf(id) == Fate::throws) {
      throw std::runtime_error(answerTo(caller, request.id()));
    }
    auto response = c10::make_intrusive<rpc::JitFuture>(messageType());
    open.add({response, caller, id});
    return response;
  });
}

/// All calls of one caller, in random order; about each third comes twice.
void callAll(ServingWorker& worker, WorkerId caller, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint64_t> ids;
  for (uint64_t id = 1; id <= kCallsEach; ++id) {
    ids.insert(ids.end(), random() % 3 == 0 ? 2 : 1, id);
  }
  std::shuffle(ids.begin(), ids.end(), random);
  for (const uint64_t id : ids) {
    worker.deliver(caller, id, messageOf("", kOwnRequest));
  }
}

void checkAnswer(ServingWorker& worker, WorkerId caller, uint64_t id) {
  CAPTURE(caller, id);
  REQUIRE(worker.responses().count(caller, id) == 1);
  const auto response = worker.responses().waitFor(caller, id);
  const Fate fate = fateOf(id);
  CHECK(isError(*response) == (fate == Fate::throws || fate == Fate::failsLater));
  const std::string prefix = fate == Fate::throws ? "Error on Node 3: " : "";
  CHECK(payloadOf(*response) == prefix + answerTo(caller, static_cast<int64_t>(id)));
}

} // namespace

TEST_CASE("each of many calls is answered once, by its own answer", "[server_traffic]") {
  for (const unsigned seed : seeds(5)) {
    INFO("TORCHWIRE_TEST_SEED=" << seed);
    OpenCalls open;
    ServingWorker worker(4);
    serveBy(worker.dispatcher(), open);
    std::vector<std::thread> callers;
    std::vector<std::thread> enders;
    for (WorkerId caller = 1; caller <= kCallers; ++caller) {
      callers.emplace_back([&, caller] { callAll(worker, caller, seed * 10 + caller); });
      enders.emplace_back([&, caller] { open.endAll(seed * 100 + caller); });
    }
    for (std::thread& caller : callers) {
      caller.join();
    }
    CHECK(worker.responses().waitForTotal(kCallers * kCallsEach));
    open.close();
    for (std::thread& ender : enders) {
      ender.join();
    }
    for (WorkerId caller = 1; caller <= kCallers; ++caller) {
      for (uint64_t id = 1; id <= kCallsEach; ++id) {
        checkAnswer(worker, caller, id);
      }
    }
    CHECK(worker.responses().total() == kCallers * kCallsEach);
    CHECK(worker.server().metrics().active == 0);
    CHECK(worker.server().metrics().activeAsync == 0);
  }
}
