#include "test/unit/support/stand_in_workers.h"

#include <future>
#include <utility>

#include "autograd/pass/root_pass.h"

namespace torchwire {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr size_t kThreads = 4;

// An answer on its way back: encoded, as on a link.
template <typename Result>
std::function<void(const Error&, const Result&)> encoded(const PassNetwork::Answer& answer) {
  return [answer](const Error& error, const Result& result) {
    answer(error, error ? std::vector<char>() : encode(result));
  };
}

} // namespace

// ---- all workers --------------------------------------------------------------------------------

StandInWorkers::StandInWorkers(StandInProgram program, Faults faults)
    : program_(std::move(program)),
      faults_(faults),
      pool_(kThreads, "stand_in"),
      random_(faults.seed) {
  for (size_t id = 0; id < program_.parts.size(); ++id) {
    workers_.push_back(std::make_unique<StandInWorker>(*this, static_cast<WorkerId>(id)));
  }
}

StandInWorkers::~StandInWorkers() {
  timer_.stop();
  pool_.join();
}

Error StandInWorkers::backward(bool smart, milliseconds timeout) {
  const auto over = std::make_shared<std::promise<Error>>();
  start(0, smart, timeout, [over](const Error& error) { over->set_value(error); });
  return over->get_future().get();
}

void StandInWorkers::start(
    WorkerId root, bool smart, milliseconds timeout, std::function<void(const Error&)> done,
    const std::function<void(StandInGraph&)>& prepare) {
  StandInWorker& worker = *workers_[static_cast<size_t>(root)];
  const auto opened = worker.table().openRoot(
      kContext, {smart, false}, [&](const PassId&) { return worker.graph(true); });
  if (prepare) {
    prepare(static_cast<StandInGraph&>(*opened.graph));
  }
  std::make_shared<RootPass>(worker.sharedTable(), worker, opened, timeout, std::move(done))
      ->start();
}

StandInProgram::Gradients StandInWorkers::gradients() const {
  MutexLock lock(mutex_);
  return gradients_;
}

PassTable& StandInWorkers::table(WorkerId worker) {
  return workers_[static_cast<size_t>(worker)]->table();
}

void StandInWorkers::kill(WorkerId worker) {
  MutexLock lock(mutex_);
  dead_.insert(worker);
}

bool StandInWorkers::isDead(WorkerId worker) const {
  MutexLock lock(mutex_);
  return dead_.count(worker) != 0;
}

bool StandInWorkers::chance(double probability) {
  MutexLock lock(mutex_);
  return std::bernoulli_distribution(probability)(random_);
}

void StandInWorkers::post(Task task) {
  microseconds delay{0};
  if (faults_.delay) {
    MutexLock lock(mutex_);
    if (std::bernoulli_distribution(0.3)(random_)) {
      delay = microseconds(std::uniform_int_distribution<int>(0, 300)(random_));
    }
  }
  if (delay == microseconds(0)) {
    pool_.run(std::move(task));
    return;
  }
  timer_.after(delay, [this, task = std::make_shared<Task>(std::move(task))] {
    pool_.run([task] { (*task)(); });
  });
}

void StandInWorkers::sendGradient(WorkerId from, const RemoteSend& to, int64_t gradient) {
  ++gradientRequests_;
  const auto pass = table(from).running(kContext);
  if (!pass) {
    return; // it has been ended meanwhile
  }
  pass->noteSent();
  if (isDead(to.worker)) {
    post([pass, to] {
      pass->onResponse(
          Error(ErrorCode::unreachable, "worker " + std::to_string(to.worker) + " is dead"), {});
    });
    return;
  }
  const GradientsHead head{pass->id(), pass->options(), to.send};
  const auto answered = std::make_shared<std::atomic<bool>>(false);
  const int deliveries = chance(faults_.duplicate) ? 2 : 1;
  const auto unanswered = std::make_shared<std::atomic<int>>(deliveries);
  const auto deliver = [this, pass, head, to, gradient, answered, unanswered] {
    StandInWorker& worker = *workers_[static_cast<size_t>(to.worker)];
    worker.table().gradients(
        head, [&worker, to, gradient] { worker.openGraph()->setGradient(to.send, gradient); },
        [this, pass, answered, unanswered](const Error& error, const Report& report) {
          if (--*unanswered > 0 && error) {
            return; // the pass may have ended since the other one came, which is about to be answered
          }
          if (answered->exchange(true)) {
            return; // as a call table does
          }
          post([pass, error, report] { pass->onResponse(error, report); });
        });
  };
  for (int i = 0; i < deliveries; ++i) {
    post(deliver);
  }
}

// ---- one worker ---------------------------------------------------------------------------------

std::unique_ptr<StandInGraph> StandInWorker::graph(bool root) {
  StandInGraph::Hooks hooks;
  hooks.send = [this](const RemoteSend& to, int64_t gradient) {
    all_.sendGradient(id_, to, gradient);
  };
  hooks.accumulate = [this](size_t leaf, int64_t gradient) {
    MutexLock lock(all_.mutex_);
    all_.gradients_[{id_, leaf}] += gradient;
  };
  hooks.closed = [this] { --all_.open_; };
  ++all_.open_;
  auto graph = std::make_unique<StandInGraph>(all_.program_.part(id_), root, std::move(hooks));
  MutexLock lock(mutex_);
  graph_ = graph.get();
  return graph;
}

StandInGraph* StandInWorker::openGraph() {
  MutexLock lock(mutex_);
  return graph_;
}

std::unique_ptr<GraphWalk> StandInWorker::walk(int64_t) {
  return std::make_unique<StandInWalk>(all_.program_.part(id_));
}

// Those at the other ends of its send functions and recv functions.
std::vector<WorkerId> StandInWorker::knownWorkers(int64_t) {
  std::set<WorkerId> known;
  for (size_t worker = 0; worker < all_.program_.parts.size(); ++worker) {
    for (const StandInFunction& function : all_.program_.parts[worker].functions) {
      if (function.remote && function.remote->worker == id_) {
        known.insert(static_cast<WorkerId>(worker));
      }
      if (function.remote && static_cast<WorkerId>(worker) == id_) {
        known.insert(function.remote->worker);
      }
    }
  }
  return {known.begin(), known.end()};
}

std::vector<WorkerId> StandInWorker::peers() const {
  std::vector<WorkerId> others;
  for (size_t worker = 0; worker < all_.program_.parts.size(); ++worker) {
    if (static_cast<WorkerId>(worker) != id_) {
      others.push_back(static_cast<WorkerId>(worker));
    }
  }
  return others;
}

void StandInWorker::request(
    WorkerId to, PassRequest kind, std::vector<char> body, milliseconds, Answer answer) {
  ++all_.ownRequests_;
  if (all_.isDead(to)) {
    answer(Error(ErrorCode::unreachable, "worker " + std::to_string(to) + " is dead"), {});
    return;
  }
  all_.post([this, to, kind, body = std::move(body), answer = std::move(answer)] {
    all_.workers_[static_cast<size_t>(to)]->serve(
        id_, kind, body, [this, answer](const Error& error, std::vector<char> result) {
          all_.post([answer, error, result = std::move(result)] { answer(error, result); });
        });
  });
}

void StandInWorker::serve(
    WorkerId caller, PassRequest kind, const std::vector<char>& body, const Answer& answer) {
  switch (kind) {
    case PassRequest::discover:
      table_->discover(decodeDiscoverRequest(body), encoded<Discovered>(answer));
      return;
    case PassRequest::resume:
      table_->resume(decodePassId(body), encoded<Report>(answer));
      return;
    case PassRequest::endPass:
      table_->endPass(decodeEndRequest(body), caller, [answer](const PassEnded& ended) {
        answer({}, encode(ended));
      });
      return;
  }
}

void StandInWorker::later(milliseconds delay, Task task) {
  all_.timer_.after(delay, std::move(task));
}

void StandInWorker::soon(Task task) {
  all_.post(std::move(task));
}

} // namespace torchwire
