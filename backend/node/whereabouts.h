// Where calls are that take long.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/thread_pool.h"
#include "backend/call/call_table.h"
#include "backend/call/served_calls.h"
#include "backend/node/own_calls.h"
#include "backend/wire/roster.h"
#include "backend/wire/whereabouts_messages.h"

namespace torchwire {

/// Asks callees where calls of this worker are, and tells callers where theirs are. A request whose function has a call of
/// its own under way is where that one is: so questions go from worker to worker, as far as the calls do, and find out if
/// they come back to a worker that they have been at (edge chasing; Chandy, Misra and Haas 1983). Thread-safe.
class Whereabouts {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Texts = std::vector<std::string>;

  /// What belongs to the worker. All of it outlives the Whereabouts, and its functions run on threads that may block.
  struct Worker {
    WorkerId id;
    std::function<std::string(WorkerId)> describe; // for messages: worker 'trainer0' (rank 2)
    std::function<std::string(WorkerId)> nameOf;
    const ThreadPool& requests;
    const size_t spareThreads; // of `requests`
    ThreadPool& control; // for what must not wait on the thread that ends a call
    CallTable& calls;
    OwnCalls& ownCalls;
    /// The requests that it has; null before it serves any.
    std::function<const ServedCalls*()> served;
    /// Nullopt: the request of the call has been sent, as far as is known.
    std::function<std::optional<std::string>(WorkerId to, uint64_t callId)> whyUnsent;
    /// See AgentOptions.
    std::function<std::string(uint64_t thread)> stackOf;
  };
  /// Answers callers' questions from now on: before the first comes.
  explicit Whereabouts(Worker worker);
  Whereabouts(const Whereabouts&) = delete;
  Whereabouts& operator=(const Whereabouts&) = delete;

  /// Where each of those calls is, which are all to one worker: asks that worker for `patience`. On a thread that may block,
  /// without the GIL.
  Texts find(WorkerId to, const std::vector<uint64_t>& calls, Milliseconds patience) const;

  /// Finds out where those calls are, notes it with them, and logs those that are slow for the first time.
  void lookAfter(const std::vector<CallTable::Pending>& slow) const;

 private:
  using Question = WhereaboutsQuestion;
  using Step = Question::Step;
  struct Finding;
  struct Inquiry;
  struct Reply;

  void answer(WorkerId caller, const Question& question, OwnCalls::Reply reply) const;
  Finding look(WorkerId caller, uint64_t callId, const Question& question) const;
  Finding ofQueued(const ServedCalls::Status& request, const Question& question) const;
  Finding ofRunning(const ServedCalls::Status& request, const Question& question) const;
  Finding ofFetch(const ServedCalls::Status& request, const Question& question) const;
  std::optional<CallTable::Pending> callOf(const ServedCalls::Status& running) const;
  Finding follow(
      std::string text, const ServedCalls::Status& running, const CallTable::Pending& call,
      const Question& question, const std::string& remedy = {}) const;
  std::string cycle(
      const std::vector<Step>& path, std::optional<uint64_t> thread,
      const std::string& means) const;
  void prepare(Inquiry& inquiry) const;
  void ask(
      const std::shared_ptr<Inquiry>& inquiry, bool withStack, Milliseconds patience,
      std::function<void()> done) const;
  void inquire(
      const std::shared_ptr<Inquiry>& inquiry, Milliseconds patience,
      std::function<void()> done) const;
  void note(const std::vector<CallTable::Pending>& calls, const Texts& where) const;
  std::string name() const {
    return worker_.nameOf(worker_.id);
  }

  const Worker worker_;
};

} // namespace torchwire
