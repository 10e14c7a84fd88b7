#include "autograd/pass/root_pass.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace torchwire {

using std::chrono::milliseconds;

namespace {

// The pass has failed and its root waits to say so: no reason to wait long for a worker that does not answer.
constexpr milliseconds kEndPassLimit{3000};

} // namespace

RootPass::RootPass(
    std::shared_ptr<PassTable> table, PassNetwork& network, PassTable::Root root,
    milliseconds timeout, Done done)
    : table_(std::move(table)),
      network_(network),
      root_(std::move(root)),
      timeout_(timeout),
      done_(std::move(done)) {}

void RootPass::start() {
  root_.pass->prepare(
      {[self = shared_from_this()](int64_t waiting) { self->onIdle(waiting); },
       [self = shared_from_this()](const Error& error) { self->fail(error); }});
  network_.soon([pass = root_.pass] { pass->run(); });
}

// True for the first who knows how the pass ends.
bool RootPass::decide() {
  MutexLock lock(mutex_);
  return !std::exchange(decided_, true);
}

void RootPass::onIdle(int64_t waiting) {
  if (waiting == 0) {
    if (decide()) {
      root_.pass->finish();
      done_({});
    }
    return;
  }
  if (!root_.pass->options().smart) {
    waitForDeadline();
    return;
  }
  bool searched = false;
  {
    MutexLock lock(mutex_);
    searched = std::exchange(searched_, true);
  }
  if (searched) {
    failStuck();
  } else {
    discover();
  }
}

// ---- smart mode ---------------------------------------------------------------------------------

void RootPass::discover() {
  table_->discoverFrom(
      root_, [self = shared_from_this()](const Error& error, const Discovered& found) {
        if (error) {
          self->fail(error);
        } else {
          self->resume(found.workers);
        }
      });
}

// Every worker where send functions wait has been woken, so it was reached, so it is among those that walked.
void RootPass::resume(const std::vector<WorkerId>& workers) {
  const PassId id = root_.pass->id();
  root_.pass
      ->noteSent(); // for the root's own part, so that the pass cannot rest before all have been asked
  for (const WorkerId worker : workers) {
    if (worker == network_.self()) {
      continue;
    }
    root_.pass->noteSent();
    network_.request(
        worker, PassRequest::resume, encode(id), milliseconds(0),
        [pass = root_.pass](const Error& failure, const std::vector<char>& body) {
          Report report;
          const Error error = failure ? failure : read(body, decodeReport, report);
          pass->onResponse(error, report);
        });
  }
  network_.soon([pass = root_.pass, reached = table_->reached(id)] {
    pass->resumeRoot(reached);
    pass->onResponse({}, {});
  });
}

// ---- failure ------------------------------------------------------------------------------------

void RootPass::waitForDeadline() {
  if (timeout_ == milliseconds(0)) {
    return;
  }
  const auto left = started_ + timeout_ - Clock::now();
  network_.later(
      std::max(std::chrono::ceil<milliseconds>(left), milliseconds(0)),
      [weak = weak_from_this(), &network = network_] {
        if (!weak.expired()) { // as nearly always it has; else its last pointer must not go on the timer's thread
          network.soon([weak] {
            const auto self = weak.lock();
            if (self && self->root_.pass->resting()) { // or it will rest again, and come here again
              self->failStuck();
            }
          });
        }
      });
}

void RootPass::fail(const Error& error) {
  if (!decide()) {
    return;
  }
  endEverywhere([self = shared_from_this(), error](const PassEnded&) { self->done_(error); });
}

void RootPass::failStuck() {
  if (!decide()) {
    return;
  }
  endEverywhere(
      [self = shared_from_this()](const PassEnded& ended) { self->done_(self->explain(ended)); });
}

void RootPass::endEverywhere(const std::function<void(PassEnded)>& then) {
  table_->endPass({root_.pass->id(), kEndPassLimit}, network_.self(), then);
}

Error RootPass::explain(const PassEnded& ended) const {
  char seconds[32];
  std::snprintf(
      seconds, sizeof(seconds), "%.1f",
      std::chrono::duration<double>(Clock::now() - started_).count());
  std::string text = "the backward pass of autograd context " +
      std::to_string(root_.pass->id().context) + ", started by " +
      network_.describe(root_.pass->id().root) + ", could not finish within " + seconds +
      " s. These send functions still wait for gradients: the roots do not depend on what they "
      "sent, or only "
      "through others that wait:";
  for (const WaitingSend& waiting : ended.waiting) {
    text += "\n  on " + network_.describe(waiting.worker) + ": message " +
        std::to_string(waiting.send) + ", which sent what " + waiting.function + " made";
  }
  text += root_.pass->options().smart
      ? "\nIs another thread still running calls in this context?"
      : "\nThe fast algorithm needs gradients for everything that was sent in the context. Use "
        "backward_mode=\"smart\", or call what the loss does not need under torch.no_grad().";
  return Error(ErrorCode::raised, text);
}

} // namespace torchwire
