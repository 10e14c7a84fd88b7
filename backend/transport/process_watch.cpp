#include "backend/transport/process_watch.h"

#include <cerrno>
#include <future>
#include <utility>

#include "backend/base/log.h"

namespace torchwire {

// What is loop-bound in it comes and goes on the loop alone.
struct ProcessWatch::Watched {
  ProcessIdentity identity;
  Presence presence; // when it began to be watched
  Descriptor process; // none: it is over already
  Ended ended;
  std::unique_ptr<FdWatch> watch; // loop-bound
};

ProcessWatch::ProcessWatch(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}

ProcessWatch::~ProcessWatch() {
  stop();
}

bool ProcessWatch::watch(Key key, const ProcessIdentity& process, Ended ended) {
  if (!self_.sharesNumbersWith(process)) {
    forget(key);
    return false;
  }
  Descriptor opened = openProcess(process.pid);
  const Presence presence = presenceOf(process, opened, errno);
  if (presence == Presence::unknown) {
    forget(key);
    return false;
  }
  auto watched = std::make_shared<Watched>();
  watched->identity = process;
  watched->presence = presence;
  watched->process = presence == Presence::lives ? std::move(opened) : Descriptor();
  watched->ended = std::move(ended);
  replace(key, watched);
  loop_->post([this, key, watched] { begin(key, watched); });
  return true;
}

void ProcessWatch::forget(Key key) {
  replace(key, nullptr);
}

void ProcessWatch::look(Key key) {
  std::shared_ptr<Watched> watched;
  {
    MutexLock lock(mutex_);
    const auto found = watched_.find(key);
    if (found == watched_.end()) {
      return;
    }
    watched = found->second;
  }
  if (presenceOf(watched->identity) == Presence::replaced) {
    loop_->post([this, key, watched] { onEnd(key, watched, Presence::replaced); });
  }
}

void ProcessWatch::replace(Key key, std::shared_ptr<Watched> watched) {
  std::shared_ptr<Watched> former;
  {
    MutexLock lock(mutex_);
    const auto found = watched_.find(key);
    if (found != watched_.end()) {
      former = std::move(found->second);
      watched_.erase(found);
    }
    if (watched) {
      watched_.emplace(key, std::move(watched));
    }
  }
  if (former) {
    loop_->post([former] { former->watch.reset(); });
  }
}

bool ProcessWatch::watches(Key key) const {
  MutexLock lock(mutex_);
  return watched_.contains(key);
}

void ProcessWatch::begin(Key key, const std::shared_ptr<Watched>& watched) {
  {
    MutexLock lock(mutex_);
    const auto found = watched_.find(key);
    if (found == watched_.end() || found->second != watched) {
      return; // forgotten meanwhile
    }
  }
  if (watched->process.get() < 0) {
    onEnd(key, watched, watched->presence);
    return;
  }
  try {
    watched->watch = std::make_unique<FdWatch>(
        *loop_, watched->process.get(),
        [this, key, weak = std::weak_ptr(watched)] { onEnd(key, weak.lock(), Presence::ended); });
    watched->watch->want(FdWatch::readable);
  } catch (const std::exception& e) {
    log(LogLevel::warning, std::string("a worker's process is not watched: ") + e.what());
    forget(key);
  }
}

void ProcessWatch::onEnd(Key key, const std::shared_ptr<Watched>& watched, Presence presence) {
  {
    MutexLock lock(mutex_);
    const auto found = watched_.find(key);
    if (!watched || found == watched_.end() || found->second != watched) {
      return;
    }
    watched_.erase(found);
  }
  watched->watch.reset();
  watched->ended(presence == Presence::replaced ? "runs another program now (exec)" : "has ended");
}

void ProcessWatch::stop() {
  decltype(watched_) all;
  {
    MutexLock lock(mutex_);
    all.swap(watched_);
  }
  // What the loop has begun before comes before this, and what follows finds nothing any more.
  std::promise<void> done;
  loop_->post([&] {
    for (const auto& [key, watched] : all) {
      watched->watch.reset();
    }
    done.set_value();
  });
  done.get_future().wait();
}

} // namespace torchwire
