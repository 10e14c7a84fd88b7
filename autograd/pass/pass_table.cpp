#include "autograd/pass/pass_table.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "autograd/pass/response_aggregator.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;

std::runtime_error noContext(const PassNetwork& network, int64_t context) {
  return std::runtime_error(
      "Could not find autograd context with id: " + std::to_string(context) + " on " +
      network.describe(network.self()) + ": it was released, or never reached this worker");
}

} // namespace

// ---- contexts and their passes ------------------------------------------------------------------

PassTable::ContextPtr PassTable::find(int64_t context) {
  MutexLock lock(mutex_);
  const auto found = contexts_.find(context);
  return found == contexts_.end() ? nullptr : found->second;
}

PassTable::ContextPtr PassTable::findOrAdd(int64_t context) {
  MutexLock lock(mutex_);
  if (closed_) {
    throw std::runtime_error(*closed_);
  }
  if (!graphs_.has(
          context)) { // asked under the lock: forget() comes after a release, and must find the entry
    throw noContext(network_, context);
  }
  auto& entry = contexts_[context];
  if (!entry) {
    entry = std::make_shared<Context>();
  }
  return entry;
}

bool PassTable::hasEnded(const Context& context, const PassId& id) {
  const auto last = context.ended.find(id.root);
  return last != context.ended.end() && id.number <= last->second;
}

std::shared_ptr<Pass> PassTable::running(int64_t context) {
  const ContextPtr entry = find(context);
  if (!entry) {
    return nullptr;
  }
  MutexLock lock(entry->mutex);
  return entry->running;
}

std::shared_ptr<Pass> PassTable::makePass(
    const PassId& id, const PassOptions& options, std::unique_ptr<LocalGraph> graph,
    const ContextPtr& context) {
  auto pass = std::make_shared<Pass>(
      id, options, std::move(graph), network_,
      [context = std::weak_ptr(context), id, running = running_,
       ended = begun_ ? begun_(id) : nullptr](const Error& error) {
        if (ended) { // first: once the root hears of it, it may stop the trace
          ended(error);
        }
        over(context.lock(), id, error);
        --*running;
      });
  ++*running_;
  return pass;
}

void PassTable::over(const ContextPtr& context, const PassId& id, const Error& error) {
  if (!context) {
    return;
  }
  std::shared_ptr<Pass> pass; // destroyed unlocked
  std::shared_ptr<Discovery> discovery;
  MutexLock lock(context->mutex);
  if (context->running && context->running->id() == id) {
    pass = std::move(context->running);
  }
  auto& last = context->ended[id.root];
  if (id.number >= last) {
    last = id.number;
    context->lastError = error;
  }
  if (context->discovery && context->discovery->pass() == id) {
    discovery = std::move(context->discovery);
  }
}

PassTable::Root PassTable::openRoot(
    int64_t context, const PassOptions& options, const OpenRoot& open) {
  const ContextPtr entry = findOrAdd(context);
  MutexLock lock(entry->mutex);
  if (entry->running) {
    throw std::runtime_error(
        "a backward pass runs already in autograd context " + std::to_string(context) + " on " +
        network_.describe(network_.self()) + ", started by " +
        network_.describe(entry->running->id().root) +
        ": wait for it, or use a context of its own for each");
  }
  ++started_;
  const PassId id{context, network_.self(), ++lastNumber_};
  std::unique_ptr<RootGraph> graph = open(id);
  RootGraph* const view = graph.get();
  entry->running = makePass(id, options, std::move(graph), entry);
  return {entry->running, view};
}

// The pass of a request, which may be the first that this worker hears of it.
std::shared_ptr<Pass> PassTable::joined(const GradientsHead& head) {
  const ContextPtr entry = findOrAdd(head.pass.context);
  std::shared_ptr<Pass> stale;
  {
    MutexLock lock(entry->mutex);
    if (hasEnded(*entry, head.pass)) {
      throw std::runtime_error(
          entry->lastError ? entry->lastError.message()
                           : "the backward pass is over on " + network_.describe(network_.self()));
    }
    if (entry->running && entry->running->id() == head.pass) {
      return entry->running;
    }
    if (entry->running && entry->running->id().root == head.pass.root &&
        entry->running->id().number > head.pass.number) {
      throw std::runtime_error("the root has given this backward pass up and started another");
    }
    if (entry->running && entry->running->id().root != head.pass.root) {
      throw std::runtime_error(
          "another backward pass runs already in autograd context " +
          std::to_string(head.pass.context) + " on " + network_.describe(network_.self()) +
          ", started by " + network_.describe(entry->running->id().root));
    }
    stale = std::move(entry->running); // of the same root, which has given it up
  }
  if (stale) {
    stale->abort(Error(ErrorCode::raised, "the root has started another backward pass"));
  }
  MutexLock lock(entry->mutex);
  if (hasEnded(*entry, head.pass) || (entry->running && entry->running->id() != head.pass)) {
    throw std::runtime_error("the backward pass is over on " + network_.describe(network_.self()));
  }
  if (!entry->running) { // another thread may have been as fast
    entry->running =
        makePass(head.pass, head.options, graphs_.open(head.pass, head.options), entry);
    if (entry->discovery && entry->discovery->pass() == head.pass) {
      entry->running->expectOnly(entry->discovery->reached());
    }
  }
  return entry->running;
}

void PassTable::forget(int64_t context, const std::string& why) {
  ContextPtr entry;
  {
    MutexLock lock(mutex_);
    const auto found = contexts_.find(context);
    if (found == contexts_.end()) {
      return;
    }
    entry = std::move(found->second);
    contexts_.erase(found);
  }
  std::shared_ptr<Pass> pass;
  {
    MutexLock lock(entry->mutex);
    pass = entry->running;
  }
  if (pass) {
    pass->abort(Error(ErrorCode::raised, why));
  }
}

void PassTable::forgetAll(const std::string& why) {
  std::vector<int64_t> contexts;
  {
    MutexLock lock(mutex_);
    closed_ = why;
    for (const auto& [context, entry] : contexts_) {
      contexts.push_back(context);
    }
  }
  for (const int64_t context : contexts) {
    forget(context, why);
  }
}

void PassTable::rootLost(WorkerId root) {
  std::vector<ContextPtr> entries;
  {
    MutexLock lock(mutex_);
    for (const auto& [context, entry] : contexts_) {
      entries.push_back(entry);
    }
  }
  for (const ContextPtr& entry : entries) {
    std::shared_ptr<Pass> pass;
    {
      MutexLock lock(entry->mutex);
      pass = entry->running;
    }
    if (pass && pass->id().root == root) {
      pass->abort(Error(
          ErrorCode::raised,
          network_.describe(root) + ", which started the backward pass, was lost"));
    }
  }
}

// ---- requests -----------------------------------------------------------------------------------

void PassTable::gradients(
    const GradientsHead& head, const LocalGraph::Attach& attach, const Pass::Reply& reply) {
  std::shared_ptr<Pass> pass;
  try {
    pass = joined(head);
  } catch (const std::exception& e) {
    reply(Error(ErrorCode::raised, e.what()), {});
    return;
  }
  pass->onGradients(head.send, attach, reply);
}

void PassTable::resume(const PassId& id, const Pass::Reply& reply) {
  const ContextPtr entry = find(id.context);
  std::shared_ptr<Pass> pass;
  std::shared_ptr<Discovery> done; // destroyed unlocked
  std::set<int64_t> reached;
  if (entry) {
    MutexLock lock(entry->mutex);
    if (entry->running && entry->running->id() == id) {
      pass = entry->running;
    }
    if (entry->discovery && entry->discovery->pass() == id) {
      reached = entry->discovery->reached();
      if (hasEnded(*entry, id)) {
        done = std::move(entry->discovery); // nobody comes back for it
      }
    }
  }
  if (pass) {
    pass->resume(reached, reply);
  } else {
    reply({}, {}); // it has got all that it waited for, or has yet to be woken
  }
}

// ---- the search for the exact set ---------------------------------------------------------------

std::set<int64_t> PassTable::reached(const PassId& id) {
  const ContextPtr entry = find(id.context);
  if (!entry) {
    return {};
  }
  MutexLock lock(entry->mutex);
  return entry->discovery && entry->discovery->pass() == id ? entry->discovery->reached()
                                                            : std::set<int64_t>();
}

std::shared_ptr<Discovery> PassTable::discoveryOf(const PassId& id) {
  const ContextPtr entry = findOrAdd(id.context);
  std::shared_ptr<Discovery> former; // destroyed unlocked
  MutexLock lock(entry->mutex);
  if (!entry->discovery || entry->discovery->pass() != id) {
    former =
        std::exchange(entry->discovery, std::make_shared<Discovery>(id, graphs_.walk(id.context)));
  }
  return entry->discovery;
}

void PassTable::discover(const DiscoverRequest& request, const DiscoveryReply& reply) {
  Discovery::Next next;
  try {
    next = discoveryOf(request.pass)->reach(request.sends);
  } catch (const std::exception& e) {
    reply(Error(ErrorCode::raised, e.what()), {});
    return;
  }
  forwardDiscover(request.pass, next, reply);
}

void PassTable::discoverFrom(const Root& root, const DiscoveryReply& reply) {
  Discovery::Next next;
  try {
    next = discoveryOf(root.pass->id())->reachFrom(*root.graph);
  } catch (const std::exception& e) {
    reply(Error(ErrorCode::raised, e.what()), {});
    return;
  }
  forwardDiscover(root.pass->id(), next, reply);
}

void PassTable::forwardDiscover(
    const PassId& id, const Discovery::Next& next, const DiscoveryReply& reply) {
  using Workers = std::set<WorkerId>;
  const auto answers = std::make_shared<ResponseAggregator<Workers>>(
      [reply](const Error& error, const Workers& workers) {
        reply(error, Discovered{{workers.begin(), workers.end()}});
      });
  for (const auto& [worker, sends] : next) {
    answers->expect();
    network_.request(
        worker, PassRequest::discover, encode(DiscoverRequest{id, sends}), milliseconds(0),
        [answers](const Error& failure, const std::vector<char>& body) {
          Discovered found;
          const Error error = failure ? failure : read(body, decodeDiscovered, found);
          answers->arrived(
              error, [&](Workers& all) { all.insert(found.workers.begin(), found.workers.end()); });
        });
  }
  answers->arrived({}, [&](Workers& all) { all.insert(network_.self()); });
}

// ---- ending a pass that has failed --------------------------------------------------------------

void PassTable::endPass(const EndRequest& request, WorkerId caller, const EndReply& reply) {
  const PassId& id = request.pass;
  std::shared_ptr<Pass> pass;
  try {
    const ContextPtr entry = findOrAdd(id.context);
    MutexLock lock(entry->mutex);
    if (entry->running && entry->running->id() == id) {
      pass = entry->running;
    }
    auto& told = entry->toldToEnd[id.root];
    if (told >= id.number) {
      lock.unlock();
      reply({});
      return;
    }
    told = id.number;
    auto& last =
        entry->ended[id.root]; // also where nothing has come of it: gradients may be on their way
    last = std::max(last, id.number);
  } catch (const std::exception&) { // the context has been released here
    reply({});
    return;
  }
  PassEnded here;
  if (pass) {
    here.waiting = pass->abort(Error(
        ErrorCode::raised,
        "the backward pass was ended by its root, " + network_.describe(id.root)));
  }
  forwardEnd(request, caller, std::move(here), reply);
}

// Whoever is told tells on, within less time: what comes back too late for the one in between is lost.
void PassTable::forwardEnd(
    const EndRequest& request, WorkerId caller, PassEnded here, const EndReply& reply) {
  const auto answers = std::make_shared<ResponseAggregator<PassEnded>>(
      [reply](const Error&, PassEnded ended) { reply(std::move(ended)); });
  const EndRequest next{request.pass, request.limit * 2 / 3};
  for (const WorkerId worker : graphs_.knownWorkers(request.pass.context)) {
    if (worker == network_.self() || worker == caller) {
      continue;
    }
    answers->expect();
    network_.request(
        worker, PassRequest::endPass, encode(next), next.limit,
        [self = shared_from_this(), worker, next, answers](
            const Error& error, const std::vector<char>& body) {
          PassEnded ended;
          if (error) {
            self->broadcastEnd(next, worker);
          } else {
            (void)read(body, decodePassEnded, ended);
          }
          answers->arrived({}, [&](PassEnded& all) {
            all.waiting.insert(all.waiting.end(), ended.waiting.begin(), ended.waiting.end());
          });
        });
  }
  answers->arrived({}, [&](PassEnded& all) {
    all.waiting.insert(all.waiting.begin(), here.waiting.begin(), here.waiting.end());
  });
}

// Where a worker does not answer, nobody knows whom it would have told. The failure does not wait for these.
void PassTable::broadcastEnd(const EndRequest& request, WorkerId silent) {
  for (const WorkerId worker : network_.peers()) {
    if (worker != silent) {
      network_.request(
          worker, PassRequest::endPass, encode(request), request.limit,
          [](const Error&, const std::vector<char>&) {});
    }
  }
}

} // namespace torchwire
