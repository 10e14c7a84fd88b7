// Worker: what its links tell it, and deaths.
#include <exception>
#include <utility>

#include "test/simulation/worker.h"

namespace torchwire::simulation {

using std::chrono::microseconds;

LinkManager::Events Worker::events() {
  LinkManager::Events events;
  events.frame = [this](WorkerId from, const ReceivedFrame& frame) { onFrame(from, frame); };
  events.peerLost =
      [this](WorkerId peer, const Error& error, const CallIds& received, const CallIds& unsent) {
        return onPeerLost(peer, error, received, unsent);
      };
  events.peerGone = [this](const WorkerRecord& peer, const Error& error) {
    later(microseconds(random_.below(300)), [this, peer, error] { onPeerGone(peer, error); });
  };
  events.unknownPeer = [this](const Hello& hello) { return onUnknownPeer(hello); };
  return events;
}

void Worker::onFrame(WorkerId from, const ReceivedFrame& frame) {
  if (frame.header.kind == FrameKind::request) {
    serve(from, frame);
  } else {
    calls_->answer(frame.header.callId, from, ReceivedFrame(frame));
  }
}

Task Worker::onPeerLost(
    WorkerId peer, const Error& error, const CallIds& received, const CallIds& unsent) {
  world_.note([&] { return record_.name + ": " + error.message(); });
  const ErrorCode code = error.code();
  if (code == ErrorCode::peerLeft) {
    known_.erase(peer);
  }
  const bool lives = code == ErrorCode::linkBroken || code == ErrorCode::badFrame;
  Task complete;
  if (world_.bug != Bug::forgetsTheLost) {
    complete = calls_->takePeer(peer, error, lives ? received : CallIds(), unsent);
  }
  if (code != ErrorCode::peerLeft && peer != record_.id) {
    askWhetherItLives(peer, error);
  }
  return complete;
}

void Worker::askWhetherItLives(WorkerId peer, const Error& loss) {
  const bool tooEarly = world_.bug == Bug::deadTooEarly;
  if (seesProcessOf(peer) && !tooEarly) {
    return;
  }
  if (loss.code() == ErrorCode::nobodyListens || tooEarly) {
    links_->markDead(peer, known_.at(peer).incarnation, "nobody listens at its address");
  } else if (loss.code() == ErrorCode::linkBroken) {
    later(Duration(0), [this, peer] {
      ++pendingSends_;
      links_->connect(peer, [this](const Error&) { --pendingSends_; });
    });
  }
}

std::optional<Refusal> Worker::onUnknownPeer(const Hello& hello) {
  learn(hello.self);
  rrefs_.forgetWorker(hello.self.id);
  later(Duration(0), contexts_.peerJoined(hello.self.id));
  watch(hello.self);
  return std::nullopt;
}

/// As on a thread that may block.
void Worker::onPeerGone(const WorkerRecord& peer, const Error& error) {
  const bool died = error.code() == ErrorCode::workerDied;
  world_.note([&] { return record_.name + ": reclaims w" + std::to_string(peer.id); });
  if (died) {
    world_.oracle.toldDead(record_.name, peer.incarnation);
  }
  rrefs_.workerGone(peer.id, error);
  contexts_.peerGone(peer.id);
  if (world_.bug != Bug::neverReclaims) {
    links_->reclaimed(peer.id, peer.incarnation);
  }
  if (died) {
    takeOffRoster(peer);
  }
}

void Worker::takeOffRoster(const WorkerRecord& dead) {
  if (world_.bug == Bug::leavesOnRoster) {
    return;
  }
  try {
    membership_->remove(dead);
  } catch (const std::exception&) {
    notRemoved_.insert(dead.incarnation);
  }
}

// ---- processes ----------------------------------------------------------------------------------

bool Worker::seesProcessOf(WorkerId peer) const {
  return world_.settings.sharesHosts || peer == record_.id;
}

/// Of a rival, which was on this host, it is known in any case.
bool Worker::hasEnded(const WorkerRecord& worker, bool asksHost) const {
  return (asksHost || seesProcessOf(worker.id)) &&
      world_.oracle.process(world_.oracle.numberOf(worker.incarnation)).ended.has_value();
}

void Worker::watch(const WorkerRecord& peer) {
  const size_t number = world_.oracle.numberOf(peer.incarnation);
  if (seesProcessOf(peer.id) && world_.oracle.process(number).ended) {
    onProcessEnd(peer);
  }
}

void Worker::onProcessEnd(const WorkerRecord& peer) {
  if (!seesProcessOf(peer.id)) {
    return;
  }
  later(microseconds(random_.below(2000)), [this, peer] {
    links_->markDead(peer.id, peer.incarnation, "its process has ended");
  });
}

} // namespace torchwire::simulation
