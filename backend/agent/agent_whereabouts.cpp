// Agent: where calls are that take long.
#include <array>
#include <cstdio>
#include <future>
#include <map>
#include <string>
#include <utility>

#include "backend/agent/agent.h"
#include "backend/agent/call_end.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;
using Texts = std::vector<std::string>;

// For a callee to say where calls are, with and without stacks: for those it needs Python's lock.
constexpr milliseconds kPatience{2000};
// At a time; of further ones only the number is logged.
constexpr size_t kLogged = 10;

std::string seconds(std::chrono::nanoseconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", std::chrono::duration<double>(time).count());
  return text.data();
}

std::vector<char> question(const std::vector<uint64_t>& calls, bool withStack) {
  std::vector<char> body;
  ByteWriter out(body);
  out.flag(withStack);
  out.number(static_cast<uint32_t>(calls.size()));
  for (const uint64_t id : calls) {
    out.number(id);
  }
  return body;
}

/// Empty where the callee has not answered.
Texts textsOf(Outcome outcome, size_t expected) {
  if (outcome.error || hasFailed(outcome)) {
    return {};
  }
  const DecodedMessage answer = responseIn(std::move(outcome), false, false);
  ByteReader in(std::as_const(*answer.message).payload());
  Texts texts;
  for (size_t i = 0; i < expected; ++i) {
    texts.push_back(in.string());
  }
  return texts;
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

// ---- at the callee ------------------------------------------------------------------------------

void Agent::serveWhereabouts() {
  dispatcher_.handleOwn(own_messages::kWhereabouts, [this](WorkerId caller, Message& request) {
    ByteReader in(std::as_const(request).payload());
    std::vector<char> body;
    ByteWriter out(body);
    for (const std::string& text : whereaboutsHere(caller, in)) {
      out.string(text);
    }
    return completed(messageOf(std::move(body), own_messages::kWhereaboutsReply));
  });
}

Texts Agent::whereaboutsHere(WorkerId caller, ByteReader& request) {
  const bool withStack = request.flag();
  Texts texts;
  for (auto left = request.number<uint32_t>(); left > 0; --left) {
    const auto callId = request.number<uint64_t>();
    const auto served = server_->served().find(caller, callId);
    texts.push_back(
        served ? describe(*served, withStack)
               : "worker '" + workerInfo_.name_ +
                "' does not have it: its request has not come, or its answer is on the way");
  }
  return texts;
}

std::string Agent::describe(const ServedCalls::Status& request, bool withStack) const {
  const std::string at = "at worker '" + workerInfo_.name_ + "'";
  const std::string since = "for " + seconds(request.inState);
  switch (request.state) {
    case ServedCalls::State::queued:
      return "it has been queued " + at + " " + since +
          (requests_.idle() == 0 ? ": all " + std::to_string(requests_.capacity()) +
                   " of its threads (num_worker_threads) run other requests"
                                 : "");
    case ServedCalls::State::returned:
      return isFetch(request.request)
          ? "the RRef has had no value " + at + " " + since +
              ": its creation has not come, or has not ended"
          : "its function " + at + " has returned a future, which has not been complete " + since;
    case ServedCalls::State::running:
      break;
  }
  const std::string stack = withStack ? options_.stackOf(request.thread) : std::string();
  return "it has been running " + at + " " + since + (stack.empty() ? "" : ", in\n" + stack);
}

// ---- at the caller ------------------------------------------------------------------------------

/// Nullopt: its request has been sent, as far as is known.
std::optional<std::string> Agent::whyUnsent(WorkerId to, uint64_t callId) const {
  if (window_ && window_->isWaiting(to, callId)) {
    return "its request has not been sent, for as many bytes as max_bytes_in_flight allows are "
           "under way to the worker";
  }
  const auto status = to == self_ ? std::nullopt : statusOf(to);
  if (status && status->state != PeerState::connected) {
    return std::string("the connection to the worker is ") + nameOf(status->state) +
        ": the request has not been sent, or its answer cannot come";
  }
  return std::nullopt;
}

/// A question to one worker for some calls, and what is known of them so far.
struct Agent::Inquiry {
  WorkerId to;
  std::vector<uint64_t> calls;
  Texts texts; // of each call; empty: nothing is known
  std::vector<size_t> sent; // which of them have been sent, so that the worker may know them
};

/// Asks first for what needs no lock of Python's, then for all. `done` runs on whatever thread ends the last call, perhaps
/// on this one: it must not block.
void Agent::inquire(
    const std::shared_ptr<Inquiry>& inquiry, milliseconds patience, std::function<void()> done) {
  inquiry->texts.resize(inquiry->calls.size());
  for (size_t i = 0; i < inquiry->calls.size(); ++i) {
    if (auto why = whyUnsent(inquiry->to, inquiry->calls[i])) {
      inquiry->texts[i] = std::move(*why);
    } else {
      inquiry->texts[i] =
          "its request has been sent, and the worker does not answer when asked where it is";
      inquiry->sent.push_back(i);
    }
  }
  if (inquiry->sent.empty()) {
    done();
    return;
  }
  askWhereabouts(
      inquiry, /* withStack */ false, patience, [this, inquiry, patience, done = std::move(done)] {
        askWhereabouts(inquiry, /* withStack */ true, patience, done);
      });
}

void Agent::askWhereabouts(
    const std::shared_ptr<Inquiry>& inquiry, bool withStack, milliseconds patience,
    std::function<void()> done) {
  std::vector<uint64_t> calls;
  for (const size_t i : inquiry->sent) {
    calls.push_back(inquiry->calls[i]);
  }
  openOwnCall(
      inquiry->to, own_messages::kWhereabouts, question(calls, withStack), patience,
      [inquiry, done = std::move(done)](Outcome outcome) {
        guarded("what a worker says of calls", [&] {
          Texts said = textsOf(std::move(outcome), inquiry->sent.size());
          for (size_t i = 0; i < said.size(); ++i) {
            inquiry->texts[inquiry->sent[i]] = std::move(said[i]);
          }
        });
        guarded("asking where calls are", done);
      });
}

Texts Agent::whereabouts(WorkerId to, const std::vector<uint64_t>& calls, milliseconds patience) {
  const auto inquiry = std::make_shared<Inquiry>(Inquiry{to, calls, {}, {}});
  const auto ended = std::make_shared<std::promise<void>>();
  inquire(inquiry, patience, [ended] { ended->set_value(); });
  ended->get_future().wait(); // at the latest when the second question's time is over
  return inquiry->texts;
}

void Agent::watchSlowCalls() {
  // On the timer's thread: sending is for another one.
  calls_->watchSlow(options_.slowCallWarning, [this](std::vector<CallTable::Pending> slow) {
    control_->run([this, slow = std::move(slow)] {
      guarded("looking after slow calls", [&] { lookAfter(slow); });
    });
  });
}

void Agent::lookAfter(const std::vector<CallTable::Pending>& slow) {
  std::map<WorkerId, std::vector<CallTable::Pending>> byWorker;
  for (const auto& call : slow) {
    byWorker[call.key.to].push_back(call);
  }
  for (const auto& [to, calls] : byWorker) {
    const auto inquiry = std::make_shared<Inquiry>(Inquiry{to, idsOf(calls), {}, {}});
    inquire(inquiry, kPatience, [this, inquiry, calls = calls] {
      control_->run([this, inquiry, calls] { noteSlow(inquiry->to, calls, inquiry->texts); });
    });
  }
}

// ---- observers ----------------------------------------------------------------------------------

void Agent::serveObservers() {
  dispatcher_.handleOwn(own_messages::kObserve, [this](WorkerId, Message& request) {
    const auto& body = std::as_const(request).payload();
    const std::string answer = options_.answer(std::string(body.begin(), body.end()));
    return completed(
        messageOf(std::vector<char>(answer.begin(), answer.end()), own_messages::kObserved));
  });
}

std::string Agent::askObserver(WorkerId to, const std::string& question, milliseconds patience) {
  const std::vector<char> answer = ask(
      to, own_messages::kObserve, std::vector<char>(question.begin(), question.end()), patience);
  return {answer.begin(), answer.end()};
}

// ---- what is logged -----------------------------------------------------------------------------

void Agent::noteSlow(
    WorkerId to, const std::vector<CallTable::Pending>& calls, const Texts& where) {
  size_t logged = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const CallTable::Pending& call = calls[i];
    calls_->noteWhereabouts(
        call.key.id, "when it had taken " + seconds(call.age) + ", " + where[i]);
    if (call.isNewlySlow && calls_->contains(call.key.id) && ++logged <= kLogged) {
      log(LogLevel::warning,
          "call " + std::to_string(call.key.id) + " of " + call.function->describe() + " to " +
              directory_.describe(to) + " has taken " + seconds(call.age) + ": " + where[i]);
    }
  }
  if (logged > kLogged) {
    log(LogLevel::warning,
        std::to_string(logged - kLogged) + " further calls to " + directory_.describe(to) +
            " have taken as long");
  }
}

} // namespace torchwire
