#include "backend/node/whereabouts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <future>
#include <map>
#include <utility>

#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/wire/own_requests.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;

// For a callee to say where calls are, with and without stacks: for those it needs Python's lock.
constexpr milliseconds kPatience{2000};
// A question does not go on with less than this.
constexpr milliseconds kLeastPatience{100};
// May pass between a look at a request and one at a call.
constexpr milliseconds kBetweenLooks{10};
// At a time; of further ones only the number is logged.
constexpr size_t kLogged = 10;

std::string seconds(std::chrono::nanoseconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", std::chrono::duration<double>(time).count());
  return text.data();
}

bool mayGoOn(const WhereaboutsQuestion& question) {
  return question.path.size() < WhereaboutsQuestion::kMaxSteps &&
      question.patience > kLeastPatience;
}

bool isFetch(const ServedCalls::Request& request) {
  return request.function != nullptr && request.function->kind == "fetch";
}

std::vector<uint64_t> idsOf(const std::vector<CallTable::Pending>& calls) {
  std::vector<uint64_t> ids;
  ids.reserve(calls.size());
  for (const auto& call : calls) {
    ids.push_back(call.key.id);
  }
  return ids;
}

} // namespace

/// What is known here of a call.
struct Whereabouts::Finding {
  std::string text;
  std::optional<CallTable::Pending> next =
      {}; // a call of this worker's that it waits for, where that is
  uint64_t thread = 0; // that has made it
};

/// A question to one worker for some calls, and what is known of them so far.
struct Whereabouts::Inquiry {
  WorkerId to;
  std::vector<uint64_t> calls;
  std::vector<Step> path;
  Texts texts = {}; // of each call; empty: nothing is known
  std::vector<size_t> sent = {}; // which of them have been sent, so that the worker may know them

  void hear(WhereaboutsAnswer answer) {
    for (size_t i = 0; i < sent.size(); ++i) {
      texts[sent[i]] = std::move(answer.texts[i]);
    }
  }
};

/// The answer to a question, some of whose parts others have to give.
struct Whereabouts::Reply {
  Reply(size_t calls, OwnCalls::Reply send)
      : answer{Texts(calls)}, open(calls + 1), give(std::move(send)) {}

  void close() {
    if (--open > 0) {
      return;
    }
    give(answer.encode());
  }

  WhereaboutsAnswer answer;
  std::atomic<size_t> open; // parts; one is answer(), which ends when all questions have gone on
  const OwnCalls::Reply give;
};

// ---- at the callee ------------------------------------------------------------------------------

Whereabouts::Whereabouts(Worker worker) : worker_(std::move(worker)) {
  worker_.ownCalls.handle(
      own_requests::kWhereabouts,
      [this](WorkerId caller, const OwnCalls::Body& request, const OwnCalls::Reply& reply) {
        answer(caller, Question::decode(request), reply);
      });
}

void Whereabouts::answer(WorkerId caller, const Question& question, OwnCalls::Reply give) const {
  const auto reply = std::make_shared<Reply>(question.calls.size(), std::move(give));
  for (size_t i = 0; i < question.calls.size(); ++i) {
    Finding found = look(caller, question.calls[i], question);
    reply->answer.texts[i] = std::move(found.text);
    if (!found.next) {
      reply->close();
      continue;
    }
    auto path = question.path;
    path.push_back({worker_.id, found.thread});
    const auto inquiry = std::make_shared<Inquiry>(
        Inquiry{found.next->key.to, {found.next->key.id}, std::move(path)});
    prepare(*inquiry);
    ask(inquiry, question.withStack, question.patience * 3 / 4, [this, reply, inquiry, i] {
      worker_.control.run([reply, inquiry, i] {
        reply->answer.texts[i] += inquiry->texts[0];
        reply->close();
      });
    });
  }
  reply->close();
}

Whereabouts::Finding Whereabouts::look(
    WorkerId caller, uint64_t callId, const Question& question) const {
  const ServedCalls* const served = worker_.served();
  const auto request = served == nullptr ? std::nullopt : served->find(caller, callId);
  if (!request) {
    return {
        "worker '" + name() +
        "' does not have it: its request has not come, or its answer is on the way"};
  }
  switch (request->state) {
    case ServedCalls::State::queued:
      return ofQueued(*request, question);
    case ServedCalls::State::running:
      return ofRunning(*request, question);
    case ServedCalls::State::returned:
      break;
  }
  return isFetch(request->request)
      ? ofFetch(*request, question)
      : Finding{
            "its function at worker '" + name() +
            "' has returned a future, which has not been complete for " +
            seconds(request->inState)};
}

Whereabouts::Finding Whereabouts::ofQueued(
    const ServedCalls::Status& request, const Question& question) const {
  std::string text =
      "it has been queued at worker '" + name() + "' for " + seconds(request.inState);
  if (worker_.requests.idle() > 0) {
    return {std::move(text)};
  }
  text += ": all " + std::to_string(worker_.requests.capacity()) +
      " of its threads (num_worker_threads) run other requests";
  if (worker_.requests.blocked() > 0) {
    text += " or wait, as do " + std::to_string(worker_.spareThreads) +
        " spare ones (num_spare_threads)";
  }
  for (const auto& other : worker_.served()->all()) {
    if (const auto call = callOf(other)) {
      return follow(
          text + "; the oldest that waits, " + other.request.function->describe() + " of " +
              worker_.describe(other.request.caller) + ",",
          other, *call, question, "; raise one of the two options");
    }
  }
  return {std::move(text)};
}

Whereabouts::Finding Whereabouts::ofRunning(
    const ServedCalls::Status& request, const Question& question) const {
  std::string text =
      "it has been running at worker '" + name() + "' for " + seconds(request.inState);
  if (const auto call = callOf(request)) {
    return follow(text + " and", request, *call, question);
  }
  text +=
      cycle(question.path, std::nullopt, "it may wait for what one of them holds, such as a lock");
  const std::string stack = question.withStack ? worker_.stackOf(request.thread) : std::string();
  return {stack.empty() ? text : text + ", in\n" + stack};
}

Whereabouts::Finding Whereabouts::ofFetch(
    const ServedCalls::Status& request, const Question& question) const {
  const std::string text =
      "the RRef has had no value at worker '" + name() + "' for " + seconds(request.inState) + ": ";
  for (const auto& other : worker_.served()->all()) {
    if (other.rref == request.rref && other.state == ServedCalls::State::running) {
      Finding creation = ofRunning(other, question);
      creation.text = text + "as to its creation, " + creation.text;
      return creation;
    }
  }
  return {text + "its creation has not come, or has not ended"};
}

/// The oldest call that is under way of those which the request's function has made on its own thread.
std::optional<CallTable::Pending> Whereabouts::callOf(const ServedCalls::Status& running) const {
  if (running.state != ServedCalls::State::running) {
    return std::nullopt;
  }
  for (const auto& call : worker_.calls.pending()) { // the oldest first
    if (call.thread == running.thread && call.age <= running.inState + kBetweenLooks) {
      return call;
    }
  }
  return std::nullopt;
}

/// Goes on with the call, unless the question comes back to it.
Whereabouts::Finding Whereabouts::follow(
    std::string text, const ServedCalls::Status& running, const CallTable::Pending& call,
    const Question& question, const std::string& remedy) const {
  text += " has had another call under way for " + seconds(call.age);
  const std::string closed =
      cycle(question.path, running.thread, "none of them can go on" + remedy);
  if (!closed.empty() || !mayGoOn(question)) {
    return {text + closed};
  }
  return {
      text + ",\n  call " + std::to_string(call.key.id) + " of " + call.function->describe() +
          " to " + worker_.describe(call.key.to) + ": ",
      call, running.thread};
}

/// Empty where the question has not been at this worker before, or not with that thread.
std::string Whereabouts::cycle(
    const std::vector<Step>& path, std::optional<uint64_t> thread, const std::string& means) const {
  const auto here = std::find_if(path.rbegin(), path.rend(), [&](const Step& step) {
    return step.worker == worker_.id && (!thread || step.thread == *thread);
  });
  if (here == path.rend()) {
    return {};
  }
  std::string workers;
  for (auto step = here.base() - 1; step != path.end(); ++step) {
    workers += "'" + worker_.nameOf(step->worker) + "' -> ";
  }
  return "; these calls form a cycle, " + workers + "'" + name() + "': " + means;
}

// ---- at the caller ------------------------------------------------------------------------------

/// Says of each call what is known here, and which of them are to be asked for.
void Whereabouts::prepare(Inquiry& inquiry) const {
  inquiry.texts.resize(inquiry.calls.size());
  for (size_t i = 0; i < inquiry.calls.size(); ++i) {
    if (auto why = worker_.whyUnsent(inquiry.to, inquiry.calls[i])) {
      inquiry.texts[i] = std::move(*why);
    } else {
      inquiry.texts[i] =
          "its request has been sent, and the worker does not answer when asked where it is";
      inquiry.sent.push_back(i);
    }
  }
}

void Whereabouts::ask(
    const std::shared_ptr<Inquiry>& inquiry, bool withStack, milliseconds patience,
    std::function<void()> done) const {
  if (inquiry->sent.empty()) {
    done();
    return;
  }
  Question question{withStack, patience, inquiry->path, {}};
  for (const size_t i : inquiry->sent) {
    question.calls.push_back(inquiry->calls[i]);
  }
  worker_.ownCalls.open(
      inquiry->to, own_requests::kWhereabouts, question.encode(), patience,
      [inquiry, done = std::move(done)](const OwnCalls::Answer& answer) {
        guarded("what a worker says of calls", [&] {
          if (!answer.error) {
            inquiry->hear(WhereaboutsAnswer::decode(answer.body, inquiry->sent.size()));
          }
        });
        guarded("asking where calls are", done);
      });
}

/// Asks first for what needs no lock of Python's, then for all.
void Whereabouts::inquire(
    const std::shared_ptr<Inquiry>& inquiry, milliseconds patience,
    std::function<void()> done) const {
  prepare(*inquiry);
  ask(inquiry, /* withStack */ false, patience, [this, inquiry, patience, done = std::move(done)] {
    ask(inquiry, /* withStack */ true, patience, done);
  });
}

Whereabouts::Texts Whereabouts::find(
    WorkerId to, const std::vector<uint64_t>& calls, milliseconds patience) const {
  const auto inquiry = std::make_shared<Inquiry>(Inquiry{to, calls, {{worker_.id, 0}}});
  const auto ended = std::make_shared<std::promise<void>>();
  inquire(inquiry, patience, [ended] { ended->set_value(); });
  ended->get_future().wait(); // at the latest when the second question's time is over
  return inquiry->texts;
}

void Whereabouts::lookAfter(const std::vector<CallTable::Pending>& slow) const {
  std::map<WorkerId, std::vector<CallTable::Pending>> byWorker;
  for (const auto& call : slow) {
    byWorker[call.key.to].push_back(call);
  }
  for (const auto& [to, calls] : byWorker) {
    const auto inquiry = std::make_shared<Inquiry>(Inquiry{to, idsOf(calls), {{worker_.id, 0}}});
    inquire(inquiry, kPatience, [this, inquiry, calls = calls] {
      worker_.control.run([this, inquiry, calls] { note(calls, inquiry->texts); });
    });
  }
}

void Whereabouts::note(const std::vector<CallTable::Pending>& calls, const Texts& where) const {
  size_t logged = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const CallTable::Pending& call = calls[i];
    worker_.calls.noteWhereabouts(
        call.key.id, "when it had taken " + seconds(call.age) + ", " + where[i]);
    if (call.isNewlySlow && worker_.calls.contains(call.key.id) && ++logged <= kLogged) {
      log(LogLevel::warning,
          "call " + std::to_string(call.key.id) + " of " + call.function->describe() + " to " +
              worker_.describe(call.key.to) + " has taken " + seconds(call.age) + ": " + where[i]);
    }
  }
  if (logged > kLogged) {
    log(LogLevel::warning,
        std::to_string(logged - kLogged) + " further calls to " +
            worker_.describe(calls.front().key.to) + " have taken as long");
  }
}

} // namespace torchwire
