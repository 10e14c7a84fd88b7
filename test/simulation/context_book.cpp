#include "test/simulation/context_book.h"

#include <utility>

#include "test/simulation/bug.h"

namespace torchwire::simulation {
namespace {

// As the product's Container does.
constexpr int kRetries = 5;
constexpr std::chrono::seconds kFirstPause{1};

} // namespace

ContextBook::ContextBook(Sender& sender, WorkerId self, ContextId first)
    : sender_(sender),
      self_(self),
      next_((static_cast<ContextId>(self) << 48) + first),
      registry_(std::make_shared<ContextRegistry>(outside(), ContextRegistry::Limits())) {}

ContextRegistry::Outside ContextBook::outside() {
  ContextRegistry::Outside outside;
  outside.take = [this](ContextId id) -> std::optional<ContextRegistry::Taken> {
    auto node = contexts_.extract(id);
    if (!node) {
      return std::nullopt;
    }
    node.mapped().erase(self_);
    return ContextRegistry::Taken{std::move(node.mapped()), nullptr};
  };
  outside.tell = [this](WorkerId worker, ContextId id, const ContextRegistry::Told& told) {
    tell(worker, id, told);
  };
  outside.peers = [this] {
    const auto peers = sender_.peers();
    return ContextRegistry::Workers(peers.begin(), peers.end());
  };
  outside.gone = [](ContextId) {};
  return outside;
}

// ---- the program --------------------------------------------------------------------------------

void ContextBook::open() {
  const ContextId id = next_++;
  opened_.push_back(id);
  contexts_[id];
  registry_->opened(id);
}

bool ContextBook::call(uint64_t choice, WorkerId to, WorkerId then) {
  if (opened_.empty()) {
    return false;
  }
  Message message;
  message.context = opened_[choice % opened_.size()];
  message.then = then;
  sender_.request(to, message, {}, send(message.context, to));
  return true;
}

bool ContextBook::close(uint64_t choice) {
  if (opened_.empty()) {
    return false;
  }
  const size_t index = choice % opened_.size();
  const ContextId id = opened_[index];
  opened_.erase(opened_.begin() + static_cast<ptrdiff_t>(index));
  registry_->release(id, std::nullopt, [](bool) {});
  return true;
}

void ContextBook::closeAll() {
  while (close(0)) {
  }
}

// ---- calls --------------------------------------------------------------------------------------

std::function<void()> ContextBook::begin(WorkerId caller, ContextId id) {
  registry_->callBegins(id);
  contexts_[id].insert(caller);
  return [this, id] { registry_->callEnds(id); };
}

Sender::Done ContextBook::send(ContextId id, WorkerId to) {
  contexts_[id].insert(to);
  return [this, id, to](const Error& error) {
    if (!error) {
      contexts_[id].insert(to); // the response opens it anew, if need be
    } else if (error.executed() != Executed::no) {
      registry_->ownCallUnanswered(id, to);
    }
    registry_->ownCallEnded(id, to);
  };
}

// ---- releases -----------------------------------------------------------------------------------

void ContextBook::serveRelease(WorkerId from, ContextId id, const ContextRegistry::Done& answer) {
  registry_->release(id, from, answer);
}

void ContextBook::tell(WorkerId worker, ContextId id, const ContextRegistry::Told& told) {
  if (!sender_.knows(worker) || planted(Bug::releasesHere)) {
    told(planted(Bug::releasesHere));
    return;
  }
  Message message;
  message.kind = MessageKind::release;
  message.context = id;
  sender_.request(worker, message, {.sure = false}, [this, worker, id, told](const Error& error) {
    if (error) {
      tellAgain(worker, id, kRetries, kFirstPause);
    }
    told(!error);
  });
}

void ContextBook::tellAgain(WorkerId worker, ContextId id, int tries, Duration pause) {
  Message message;
  message.kind = MessageKind::release;
  message.context = id;
  if (!sender_.knows(worker)) {
    unreached_.emplace(id, worker);
    return;
  }
  sender_.request(
      worker, message, {.sure = false}, [this, worker, id, tries, pause](const Error& error) {
        if (!error) {
          return;
        }
        if (tries == 0) {
          unreached_.emplace(id, worker);
          return;
        }
        sender_.later(pause, [this, worker, id, tries, pause] {
          tellAgain(worker, id, tries - 1, pause * 3 / 2);
        });
      });
}

void ContextBook::peerGone(WorkerId peer) {
  registry_->workerGone(peer)();
}

std::function<void()> ContextBook::peerJoined(WorkerId peer) {
  return registry_->workerIsNew(peer);
}

} // namespace torchwire::simulation
